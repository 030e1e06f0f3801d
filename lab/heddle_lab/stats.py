"""Statistics of paired comparisons. Virtual time has no measurement noise: all variance is between seeds.

The rule, for each row of a table (one metric of one workload point, n seeds run under both schedulers):

1. Each seed gives the effect candidate / baseline - 1; the estimate is the median of the effects. Where a value
   is zero or negative there is no ratio, and the effect is the difference candidate - baseline.
2. The interval is the percentile bootstrap of that median at 95 %. For n = 5 it is [smallest, largest effect],
   because three of five draws are the same extreme with probability 5.8 %; it covers the true median of any
   continuous distribution with probability 1 - 2/2^5 = 93.75 % (the sign test's interval).
3. The p-value is Student's paired t on the logarithms of the ratios (on the differences where there are no
   ratios). An exact sign-flip test cannot serve for n = 5: its smallest two-sided p is 2/2^5 = 0.0625, so it
   could never reject, let alone after a correction. Student's t is exact if log-ratios are normal and
   conservative if their tails are heavier. The variance is at least that of rounding to the metric's resolution
   (r^2 / 12 for each value): three times 5 -> 6 us, in whole microseconds, is no certainty.
4. Holm's step-down correction is applied over all rows of the table.
5. The verdict is "better" or "worse" only if the interval excludes 0 AND the corrected p is below 0.05 AND the
   median ratio differs from 1 by at least the smallest effect worth a word. Otherwise it is "no difference",
   which means: not shown, not: shown to be equal. With fewer than five pairs it is "too few seeds" instead: hardly
   any effect could have been shown.
6. A metric that is itself a part of the CPU time (wasted idle, share error) is compared by difference, in points,
   and needs one point: twice nothing is nothing.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heddle_lab.tomlfile import Model

CONFIDENCE = 0.95
ALPHA = 0.05
BEHIND = 0.02
"""a scheduler is behind if its whole interval is worse by more"""
SMALLEST_EFFECT = 0.01
"""a median ratio nearer to 1 is no finding: the quantum alone moves compute-bound cells by up to 2 % (lab/clock)"""

FEWEST = 5
"""pairs below which nothing is said of a difference that is not shown"""

_LEAST_P = float(np.finfo(float).tiny)
"""what no number of pairs gets below"""

_RESAMPLES = 9999
_BOOTSTRAP_SEED = 20260101
"""fixed, so that the same samples give the same interval bit for bit"""


class Verdict(StrEnum):
    """The four words."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    TOO_FEW_SEEDS = "too few seeds"

    @property
    def decided(self) -> bool:
        """Whether it says which of the two is better."""
        return self in (Verdict.BETTER, Verdict.WORSE)


class Paired(Model):
    """The comparison of two schedulers in one metric."""

    pairs: int
    relative: bool
    """effects are fractions of the baseline; else differences in the metric's unit"""
    effect: float
    """median over the seeds"""
    low: float
    """lower end of the interval of the median effect"""
    high: float
    p: float
    """two-sided, not corrected"""
    smallest: float
    """an effect nearer to 0 is no finding"""


def paired(
    baseline: Sequence[float], candidate: Sequence[float], *, share: bool = False, resolution: float | None = None
) -> Paired:
    """Compare two schedulers over the same seeds.

    Args:
        baseline: one value per seed.
        candidate: the values of the same seeds, in the same order.
        share: the values are parts of a whole, 0..1: compared by difference.
        resolution: the step to which the values are known, in their unit; none: as coarse as they all look.

    Raises:
        ValueError: the lengths differ or there is no pair.
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(candidate)} values are not pairs")
    base, cand = np.asarray(baseline, float), np.asarray(candidate, float)
    relative = not share and bool(np.all(base > 0) and np.all(cand > 0))
    effects = cand / base - 1 if relative else cand - base
    low, high = interval(effects)
    step = granularity([*baseline, *candidate]) if resolution is None else resolution
    rounding = step**2 / 12 * (base**-2 + cand**-2 if relative else 2 + 0 * base)
    p = _p_value(np.log(cand / base) if relative else effects, float(rounding.mean()))
    return Paired(
        pairs=len(effects),
        relative=relative,
        effect=float(np.median(effects)),
        low=low,
        high=high,
        p=p,
        smallest=SMALLEST_EFFECT if relative or share else 0.0,
    )


def interval(sample: NDArray[np.float64]) -> tuple[float, float]:
    """Return the bootstrap interval of a sample's median; one value alone has no width."""
    if len(sample) < 2 or np.ptp(sample) == 0:
        return float(sample.min()), float(sample.max())
    result = stats.bootstrap(
        (np.sort(sample),),  # sorted: the order of the seeds must not matter
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(_BOOTSTRAP_SEED),
    )
    # Between two resamples the library interpolates, and rounds: an end may miss the extreme or the median by a bit.
    low, high = np.clip(result.confidence_interval, sample.min(), sample.max())
    median = np.median(sample)
    return float(min(low, median)), float(max(high, median))


def granularity(values: Sequence[float]) -> float:
    """Return the largest power of ten that divides all of the values, as they are written; 0 if all are 0."""
    exponents = [Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values if value]
    return float(10.0 ** min(int(exponent) for exponent in exponents)) if exponents else 0.0


def _p_value(sample: NDArray[np.float64], least_variance: float) -> float:
    """Return the two-sided p of Student's one-sample t, never 0.

    Args:
        sample: log-ratios or differences.
        least_variance: what the sample's variance is raised to if it is less: that of rounding.
    """
    mean, size = np.sort(sample).mean(), len(sample)
    if size < 2 or mean == 0:
        return 1.0
    deviation = math.sqrt(max(np.sort(sample).var(ddof=1), least_variance))
    p = 2 * stats.t.sf(abs(mean) / (deviation / math.sqrt(size)), size - 1) if deviation else 0.0
    return max(float(p), _LEAST_P)


def without_extremes(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest of the values, with both if there are but two.

    As A. Chen did with ten repetitions (Baseline and VRQ, 2014).
    """
    middle = sorted(values)[1:-1] or values
    return float(np.mean(middle))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method, in the given order.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [1.0] * len(p_values)
    floor = 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(order) - rank) * p_values[i]))
        corrected[i] = floor
    return corrected


def verdict(result: Paired, corrected_p: float, better: str) -> Verdict:
    """Return the word for a comparison.

    Args:
        result: the comparison.
        corrected_p: its p-value after Holm's correction over the table.
        better: `higher` or `lower`, the direction in which the metric improves.
    """
    shown = (result.low > 0 or result.high < 0) and corrected_p < ALPHA
    if not shown or abs(result.effect) < result.smallest:
        return Verdict.TOO_FEW_SEEDS if result.pairs < FEWEST else Verdict.NO_DIFFERENCE
    return Verdict.BETTER if (result.effect > 0) == (better == "higher") else Verdict.WORSE


def is_behind(result: Paired, better: str) -> bool:
    """Return whether the whole interval is worse by more than `BEHIND`; one pair is its own interval.

    For few seeds, of which no p-value survives Holm's correction over a long table. Differences that are neither
    ratios nor shares have no hundredths: there any is enough.

    Args:
        result: the comparison.
        better: `higher` or `lower`, the direction in which the metric improves.
    """
    margin = BEHIND if result.smallest else 0.0
    return result.high < -margin if better == "higher" else result.low > margin
