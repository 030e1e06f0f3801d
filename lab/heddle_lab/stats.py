"""Statistics of paired comparisons. Virtual time has no measurement noise: all variance is between seeds.

The rule for a row of a table, which is one metric of one workload point, n seeds run under both schedulers:

1. Each seed gives a log-ratio ln(candidate / baseline). A share of a whole, and a metric that may be zero or negative,
   gives the difference candidate - baseline instead.
2. The effect is the mean over the seeds: the geometric mean of the ratios, less one.
3. The interval is Student's t at 95 %. The standard error is at least that of rounding to the metric's resolution, and
   more seeds do not reduce it: they are all rounded in the same way. 5 -> 6 us in whole us is 20 % give or take a us.
4. The p-value is that of the same t. Holm corrects it over the primary metrics of a table, Benjamini and Hochberg over
   all others.
5. With fewer than six pairs the word is "unknown". With six: "same" if the whole interval lies within the smallest
   effect that matters, else "better" or "worse" if the corrected p is below 0.05, else "unknown".

Student's t is exact for normal log-ratios, and its interval is wider than needed for symmetric heavy tails. It is too
narrow for few seeds of a skewed distribution: `tests/test_simulation.py` says by how much.
"""

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heddle_lab.tomlfile import Model

CONFIDENCE = 0.95
ALPHA = 0.05
SMALLEST_EFFECT = 0.02
"""an effect nearer to zero does not matter: the quantum alone moves compute-bound cells by up to 2 % (lab/clock)"""

FEWEST = 6
"""pairs below which there is no verdict"""

_LEAST_P = float(np.finfo(float).tiny)
"""what no number of pairs gets below"""


class Verdict(StrEnum):
    """The four words."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNKNOWN = "unknown"

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
    """mean over the seeds: the geometric mean of the ratios less one, or the mean difference"""
    low: float
    """lower end of the interval of the effect; of a single pair there is no end"""
    high: float
    p: float
    """two-sided, corrected for the looks taken at the pairs, not for the other rows"""
    scale: float
    """what an effect of 100 % is: 1 for ratios and shares, else the baseline's mean"""
    fraction: float
    """the smallest effect that matters, as a part of `scale`"""
    deviation: float
    """standard deviation of the log-ratios, or of the differences; NaN of a single pair"""
    rounding: float
    """variance of what rounding to the resolution does to a log-ratio, or to a difference"""

    @property
    def smallest(self) -> float:
        """An effect nearer to zero does not matter."""
        return self.fraction * self.scale


class Estimate(NamedTuple):
    """Means with their standard errors, one for each sample."""

    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    size: int
    """values in a sample"""

    def margin(self, alpha: float = ALPHA) -> NDArray[np.float64]:
        """Return half the width of Student's interval, whose error probability is `alpha`."""
        return np.asarray(stats.t.ppf(1 - alpha / 2, self.size - 1) * self.error)

    def p(self) -> NDArray[np.float64]:
        """Return the two-sided p-values of Student's t, never 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.mean == 0, 0.0, np.abs(self.mean) / self.error)
        return np.asarray(np.maximum(2 * stats.t.sf(ratio, self.size - 1), _LEAST_P))


def estimate(samples: NDArray[np.float64], rounding: float | NDArray[np.float64] = 0.0) -> Estimate:
    """Return the mean of each sample and its standard error.

    Args:
        samples: log-ratios or differences; the last axis is that of the pairs, of which there are two or more.
        rounding: variance of the rounding error of one value. The error of a mean is no less: values that differ by
            less than the resolution are all rounded in the same way.
    """
    ordered = np.sort(samples, axis=-1)  # the order of the seeds must not matter to the last bit
    size = ordered.shape[-1]
    variance = np.maximum(ordered.var(axis=-1, ddof=1) / size, rounding)
    return Estimate(ordered.mean(axis=-1), np.sqrt(variance), size)


def paired(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    share: bool = False,
    resolution: float | None = None,
    alpha: float = ALPHA,
    smallest: float = SMALLEST_EFFECT,
) -> Paired:
    """Compare two schedulers over the same seeds.

    Args:
        baseline: one value per seed.
        candidate: the values of the same seeds, in the same order.
        share: the values are parts of a whole, 0..1: compared by difference.
        resolution: the step to which the values are known, in their unit; none: as coarse as they all look.
        alpha: the error probability that this look at the pairs may spend of `ALPHA` (`sequential`).
        smallest: the smallest effect that matters, a fraction of the baseline, or of the whole for shares.

    Raises:
        ValueError: the lengths differ or there is no pair.
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(candidate)} values are not pairs")
    base, cand = np.asarray(baseline, float), np.asarray(candidate, float)
    relative = not share and bool(np.all(base > 0) and np.all(cand > 0))
    sample = np.log(cand / base) if relative else cand - base
    step = granularity([*baseline, *candidate]) if resolution is None else resolution
    rounding = float(np.mean(step**2 / 12 * (base**-2 + cand**-2 if relative else 2 + 0 * base)))
    middle, low, high, p = _summary(sample, rounding, alpha)
    shown = np.expm1 if relative else np.asarray
    scale = 1.0 if relative or share else max(0.0, float(base.mean()))
    return Paired(
        pairs=len(sample),
        relative=relative,
        effect=float(shown(middle)),
        low=float(shown(low)),
        high=float(shown(high)),
        p=p,
        scale=scale,
        fraction=smallest,
        deviation=float(sample.std(ddof=1)) if len(sample) > 1 else np.nan,
        rounding=rounding,
    )


def _summary(sample: NDArray[np.float64], rounding: float, alpha: float) -> tuple[float, float, float, float]:
    """Return mean, ends of the interval and p-value; one pair excludes nothing."""
    if len(sample) < 2:
        return float(sample[0]), -np.inf, np.inf, 1.0
    found = estimate(sample, rounding)
    middle, margin = float(found.mean), float(found.margin(alpha))
    return middle, middle - margin, middle + margin, min(1.0, float(found.p()) * ALPHA / alpha)


def granularity(values: Sequence[float]) -> float:
    """Return the largest power of ten that divides all of the values, as they are written; 0 if all are 0."""
    exponents = [Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values if value]
    return float(10.0 ** min(int(exponent) for exponent in exponents)) if exponents else 0.0


def without_extremes(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest of the values, with both if there are but two.

    As A. Chen did with ten repetitions (Baseline and VRQ, 2014).
    """
    middle = sorted(values)[1:-1] or values
    return float(np.mean(middle))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method, in the given order.

    All verdicts on them together are free of false ones with probability 1 - `ALPHA`, however the rows depend on each
    other. S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [1.0] * len(p_values)
    floor = 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(order) - rank) * p_values[i]))
        corrected[i] = floor
    return corrected


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by the step-up method of Benjamini and Hochberg, in the given order.

    Of the verdicts on them, a part of `ALPHA` is expected to be false. Y. Benjamini and Y. Hochberg, "Controlling the
    false discovery rate", J. R. Statist. Soc. B 57 (1995).
    """
    return list(map(float, stats.false_discovery_control(p_values, method="bh"))) if p_values else []


def verdict(result: Paired, corrected_p: float, better: str) -> Verdict:
    """Return the word for a comparison.

    Args:
        result: the comparison.
        corrected_p: its p-value after the correction over the table.
        better: `higher` or `lower`, the direction in which the metric improves.
    """
    if result.pairs < FEWEST:
        return Verdict.UNKNOWN
    if -result.smallest <= result.low and result.high <= result.smallest:
        return Verdict.SAME
    if corrected_p >= ALPHA:
        return Verdict.UNKNOWN
    return Verdict.BETTER if (result.effect > 0) == (better == "higher") else Verdict.WORSE


def excludes_loss(result: Paired, better: str) -> bool:
    """Return whether there are pairs enough and the interval excludes a loss that matters.

    Args:
        result: the comparison.
        better: `higher` or `lower`, the direction in which the metric improves.
    """
    worst = -result.low if better == "higher" else result.high
    return result.pairs >= FEWEST and worst <= result.smallest
