"""Power: how many pairs a row needs so that an effect of some size is found.

The variance is known from the pairs seen alone. Taken at its face value it would be too small half of the time, so
its upper confidence limit is used (R. H. Browne, "On the use of a pilot sample for sample size determination",
Statistics in Medicine 14, 1995).
"""

import math
from collections.abc import Callable

from scipy import stats as scipy_stats

from heddle_lab import stats
from heddle_lab.stats import Paired

POWER = 0.8
"""probability with which the effect is to be found"""

LIMIT = 0.8
"""confidence of the upper limit of the variance"""

MOST = 10_000
"""pairs; no row that needs more is worth measuring"""


def power(pairs: int, size: float, deviation: float, *, rounding: float = 0.0, alpha: float = stats.ALPHA) -> float:
    """Return the probability that Student's paired t finds an effect.

    Args:
        pairs: how many.
        size: of the effect: a log-ratio, or a difference.
        deviation: standard deviation of one pair, in the same unit.
        rounding: variance of the rounding error, which more pairs do not reduce.
        alpha: of the test, two-sided, corrected for the other rows.
    """
    bound = scipy_stats.t.ppf(1 - alpha / 2, pairs - 1)
    margin = abs(size) - bound * math.sqrt(rounding)
    if deviation == 0:
        return float(margin > 0)
    error = deviation / math.sqrt(pairs)
    found = scipy_stats.nct.sf(bound, pairs - 1, abs(size) / error)
    return float(min(found, scipy_stats.norm.cdf(margin / error)))


def pairs_needed(result: Paired, effect: float, *, alpha: float = stats.ALPHA, rows: int = 1) -> int | None:
    """Return the pairs with which an effect is found in a row with probability `POWER`.

    None: a single pair says nothing of the variance, or no number of pairs up to `MOST` will do.

    Args:
        result: what the pairs so far say of the row.
        effect: a fraction above 0, of the baseline or of the whole that a share is of.
        alpha: error probability of the verdicts on all rows together.
        rows: primaries in the table; Holm's method tests the first of them at `alpha` / `rows`.
    """
    if result.pairs < 2:
        return None
    size = math.log1p(effect) if result.relative else effect * result.scale
    degrees = result.pairs - 1
    deviation = result.deviation * math.sqrt(degrees / scipy_stats.chi2.ppf(1 - LIMIT, degrees))

    def enough(pairs: int) -> bool:
        return power(pairs, size, deviation, rounding=result.rounding, alpha=alpha / rows) >= POWER

    return _least(enough, stats.FEWEST, MOST)


def _least(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the least number from `low` to `high` that is enough, none if none is; all above it are enough, too."""
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
