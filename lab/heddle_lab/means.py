"""Geometric means: what a comparison says of all its points together."""

import math
import statistics

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

    Such as `scx_heddle against eevdf on smp-4, Linux 7.3: speed +3.1 % (12 rows), p99 −24.0 % (5 rows)`.

    Args:
        rows: compared rows in the table's order.
    """
    found = []
    for group in comparison.by_candidate(rows):
        first = group[0]
        if parts := of(group):
            place = f"{first.machine}, Linux {first.kernel}"
            texts = [f"{name} {mean}" for name, mean in parts.items()]
            found.append(f"{first.candidate} against {first.baseline} on {place}: {', '.join(texts)}")
    return found


def of(rows: list[Row]) -> dict[str, str]:
    """Return the means of one candidate's rows, for reading: `speed` and `p99`, each if it has several rows."""
    logs = {
        "speed": [SPEED[row.metric] * _log_ratio(row) for row in rows if row.metric in SPEED and _positive(row)],
        "p99": [_log_ratio(row) for row in rows if row.metric.endswith(".p99") and _positive(row)],
    }
    return {
        name: f"{units.percent(math.expm1(statistics.fmean(values)))} ({len(values)} rows)"
        for name, values in logs.items()
        if len(values) > 1
    }


def _positive(row: Row) -> bool:
    return min(*row.baseline_values, *row.candidate_values) > 0


def _log_ratio(row: Row) -> float:
    """Return the mean over the seeds of the logarithm of candidate / baseline."""
    pairs = zip(row.baseline_values, row.candidate_values, strict=True)
    return statistics.fmean(math.log(after / before) for before, after in pairs)
