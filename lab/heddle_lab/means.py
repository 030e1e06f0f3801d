"""Geometric means: what a comparison says of all its points together."""

import math
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from heddle_lab import comparison, stats, units
from heddle_lab.comparison import Row

SPEED = {"throughput": 1, "elapsed_ns": -1}
"""metric -> exponent under which more is faster"""

KINDS = ("throughput", "p50", "p99")
"""what every summary shows, in this order"""

FOOTNOTE = (
    "Geometric means of the ratios to the baseline, one vote per workload, with Student's 95 % intervals over the "
    "seeds. throughput counts elapsed_ns as its inverse; p50 and p99 are of all latencies."
)

EXTREME = "Beside them stands the workload that moves a mean most, and the mean without it."


class Mean(NamedTuple):
    """A mean over workloads; effects are fractions of the baseline."""

    effect: float
    low: float
    """lower end of the 95 % interval; NaN where the rows share no two seeds"""
    high: float
    workloads: int
    rows: int
    extreme: str
    """the workload without which the mean differs most; empty if there is but one"""
    without: float
    """the mean without it"""

    @property
    def interval(self) -> str:
        """The interval for reading."""
        return "no interval" if math.isnan(self.low) else f"{units.percent(self.low)} … {units.percent(self.high)}"

    @property
    def short(self) -> str:
        """The mean with its interval, such as `+3.1 % (+1.0 % … +5.2 %)`."""
        return f"{units.percent(self.effect)} ({self.interval})"

    def __str__(self) -> str:
        """Return all of it for reading, such as `+3.1 % (+1.0 % … +5.2 %; 4 workloads; +1.2 % without nginx)`."""
        parts = [self.interval, units.counted(self.workloads, "workload")]
        if self.extreme:
            parts.append(f"{units.percent(self.without)} without {self.extreme}")
        return f"{units.percent(self.effect)} ({'; '.join(parts)})"


def lines(rows: list[Row]) -> list[str]:
    """Return a line for each machine, kernel and candidate that has several rows.

    Such as `scx_heddle against eevdf on smp-4, Linux 7.3: throughput +3.1 % (…), p50 −2.0 % (…), p99 −24.0 % (…)`.

    Args:
        rows: compared rows in the table's order.
    """
    found = []
    for group in comparison.by_candidate(rows):
        first, parts = group[0], of(group)
        if len(group) > 1 and any(parts.values()):
            texts = [f"{name} {mean or 'not measured'}" for name, mean in parts.items()]
            found.append(f"{first.candidate} against {first.baseline} on {first.where}: {', '.join(texts)}")
    return found


def of(rows: list[Row]) -> dict[str, Mean | None]:
    """Return the means of one candidate's rows: all of `KINDS`, none where no row has a ratio of that kind.

    A recorded load whose replay does not match its trace has no vote.
    """
    ratios = [row for row in rows if row.result.relative and not row.mismatch]
    kinds = {
        "throughput": [row for row in ratios if row.metric in SPEED],
        "p50": [row for row in ratios if row.metric.endswith(".p50")],
        "p99": [row for row in ratios if row.metric.endswith(".p99")],
    }
    return {name: mean(kinds[name]) for name in KINDS}


def mean(rows: list[Row]) -> Mean | None:
    """Return the mean of rows over the seeds that all of them have; none if there are none.

    Each workload has one vote, which its rows share. So a workload does not count more by being swept. Rows of which
    most seeds are missing do not count.
    """
    most = max((len(row.seeds) for row in rows), default=0)
    rows = [row for row in rows if len(row.seeds) >= min(most, stats.FEWEST)]
    shared = sorted(set.intersection(*(set(row.seeds) for row in rows))) if rows else []
    if not shared:
        return None
    logs = np.array([_logs(row, shared) for row in rows])
    whole, low, high = _ends(logs, rows)
    names = list(dict.fromkeys(row.workload for row in rows))
    without = {name: _effect(logs, rows, name) for name in names} if len(names) > 1 else {}
    # Without one of two the mean moves as far as without the other: rounding must not choose.
    extreme = max(without, key=lambda name: round(abs(math.log1p(without[name]) - whole), 9), default="")
    low, high = math.expm1(low), math.expm1(high)
    return Mean(math.expm1(whole), low, high, len(names), len(rows), extreme, without.get(extreme, math.nan))


def _logs(row: Row, seeds: list[int]) -> list[float]:
    """Return the logarithms of candidate / baseline of some seeds; of a time, as those of a speed."""
    sign = SPEED.get(row.metric, 1)
    values = zip(row.baseline_values, row.candidate_values, strict=True)
    of = {seed: sign * math.log(after / before) for seed, (before, after) in zip(row.seeds, values, strict=True)}
    return [of[seed] for seed in seeds]


def _votes(rows: list[Row], left_out: Hashable = None) -> list[float]:
    """Return the weight of each row: workloads have the same, and so have the rows of one."""
    counted = [row.workload for row in rows if row.workload != left_out]
    weights = {name: 1 / len(set(counted)) / counted.count(name) for name in counted}
    return [weights.get(row.workload, 0.0) for row in rows]


def _effect(logs: np.ndarray, rows: list[Row], left_out: str) -> float:
    return math.expm1(float((np.array(_votes(rows, left_out)) @ logs).mean()))


def _ends(logs: np.ndarray, rows: list[Row]) -> tuple[float, float, float]:
    """Return the mean and its interval, as logarithms: Student's, of one mean for each seed."""
    votes = np.array(_votes(rows))
    seeds = votes @ logs
    if len(seeds) < 2:
        return float(seeds.mean()), math.nan, math.nan
    found = stats.estimate(seeds, float(votes**2 @ [row.result.rounding for row in rows]))
    middle, margin = float(found.mean), float(found.margin())
    return middle, middle - margin, middle + margin
