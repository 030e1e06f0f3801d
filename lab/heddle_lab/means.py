"""Geometric means: what a comparison says of all its points together."""

import math
import statistics
from collections.abc import Iterator

from heddle_lab import comparison, units
from heddle_lab.comparison import Row

SPEED = {"throughput": 1, "elapsed_ns": -1}
"""metric -> exponent under which more is faster"""

FOOTNOTE = (
    "Geometric means over rows, of the ratios to the baseline of the same seed. "
    "Speed is throughput, or the inverse of elapsed_ns."
)


def lines(rows: list[Row]) -> list[str]:
    """Return a line for each machine, kernel and candidate that has several rows.

    Such as `scx_heddle of eevdf on smp-4, Linux 7.3: speed +3.1 % (12 rows), p99 −24.0 % (5 rows)`.

    Args:
        rows: compared rows in the table's order.
    """
    found = []
    for group in comparison.by_candidate(rows):
        first = group[0]
        speed = [SPEED[row.metric] * _log_ratio(row) for row in group if row.metric in SPEED and _positive(row)]
        p99 = [_log_ratio(row) for row in group if row.metric.endswith(".p99") and _positive(row)]
        if parts := list(_parts({"speed": speed, "p99": p99})):
            place = f"{first.machine}, Linux {first.kernel}"
            found.append(f"{first.candidate} of {first.baseline} on {place}: {', '.join(parts)}")
    return found


def _parts(logs: dict[str, list[float]]) -> Iterator[str]:
    for name, values in logs.items():
        if len(values) > 1:
            yield f"{name} {units.percent(math.expm1(statistics.fmean(values)))} ({len(values)} rows)"


def _positive(row: Row) -> bool:
    return min(*row.baseline_values, *row.candidate_values) > 0


def _log_ratio(row: Row) -> float:
    """Return the mean over the seeds of the logarithm of candidate / baseline."""
    pairs = zip(row.baseline_values, row.candidate_values, strict=True)
    return statistics.fmean(math.log(after / before) for before, after in pairs)
