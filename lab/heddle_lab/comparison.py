"""From cells to rows: which schedulers are compared, over which pairs."""

import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from heddle_lab import provenance, stats, units
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Paired, Verdict
from heddle_lab.tomlfile import Model
from heddle_lab.workload import Value

_ARROW = {"higher": "↑", "lower": "↓"}

Subject = tuple[Hashable, ...]


class Row(Model):
    """One metric of one point, candidate against baseline."""

    machine: str
    kernel: str
    workload: str
    params: dict[str, Value]
    point: str
    """the workload with those parameters that tell it from the table's other points"""
    metric: str
    unit: str
    better: str
    baseline: str
    """heading of the baseline's column: a scheduler, or a run"""
    candidate: str
    scheds: list[str]
    """the schedulers in it, as `--sched` takes them"""
    baseline_values: list[float]
    """one per seed"""
    candidate_values: list[float]
    seeds: list[int]
    flags: list[str]
    """of `heddle run`, such as `--trace`"""
    result: Paired
    corrected_p: float
    """Holm over all rows of the table"""
    verdict: Verdict
    fragile: list[str] = []
    """variants of the model in which the effect has not the sign that it has here; with any, there is no verdict"""

    @property
    def heading(self) -> str:
        """The metric and the direction in which it improves, for reading."""
        return f"{self.metric} {_ARROW[self.better]}"

    @property
    def baseline_median(self) -> str:
        """Median of the baseline, for reading."""
        return units.quantity(statistics.median(self.baseline_values), self.unit)

    @property
    def candidate_median(self) -> str:
        """Median of the candidate, for reading."""
        return units.quantity(statistics.median(self.candidate_values), self.unit)

    @property
    def effect(self) -> str:
        """The paired difference, for reading."""
        return self.show(self.result.effect)

    @property
    def interval(self) -> str:
        """The interval of the paired difference, for reading; a dash for a single pair."""
        return f"{self.show(self.result.low)} … {self.show(self.result.high)}" if self.result.pairs > 1 else "–"

    def show(self, effect: float) -> str:
        """Return an effect on this row's scale as text."""
        return units.percent(effect) if self.result.relative else units.difference(effect, self.unit)

    def command(self) -> str:
        """Return the command that measures this row again."""
        return provenance.command(
            self.machine, self.kernel, self.workload, self.params, self.scheds, max(self.seeds), self.flags
        )


def pairs(rows: list[Row]) -> str:
    """Return how many seeds were compared, for reading; some rows have fewer, where cells lack a metric."""
    least, most = (pick(row.result.pairs for row in rows) for pick in (min, max))
    return f"{least} to {most} paired seeds" if least < most else f"{most} paired seed{'s' * (most != 1)}"


def schedulers(cells: list[CellResult]) -> list[Row]:
    """Compare every scheduler with the first one, on the same machine, kernel, point and seeds."""
    names = list(dict.fromkeys(cell.sched for cell in cells))

    def rows(of_model: list[CellResult]) -> list[Row]:
        of = {name: [cell for cell in of_model if cell.sched == name] for name in names}
        return [
            row
            for name in names[1:]
            for paired in _paired(of[names[0]], of[name], _place)
            for row in _rows(paired, names[0], name)
        ]

    judged = _judged(rows(_of_variant(cells, "")), cells)
    return _robust(judged, {name: rows(_of_variant(cells, name)) for name in _variants(cells)})


def against(cells: list[CellResult], baseline: str) -> list[CellResult]:
    """Return the cells with those of one scheduler first: the baseline of what is compared next.

    Raises:
        HeddleError: no cell is of that scheduler.
    """
    first = [cell for cell in cells if cell.sched == baseline]
    if not first:
        known = ", ".join(dict.fromkeys(cell.sched for cell in cells))
        raise HeddleError(f"no scheduler {baseline} was measured; give one of {known}")
    return [*first, *(cell for cell in cells if cell.sched != baseline)]


def outdone(cells: list[CellResult], rivals: Sequence[str]) -> set[Subject]:
    """Return what is behind one of the rivals (`stats.is_behind`): one level with the best of them is not in it.

    Raises:
        HeddleError: no cell is of a rival.
    """
    against_each = (schedulers(against(cells, rival)) for rival in rivals)
    return {subject(row) for rows in against_each for row in rows if stats.is_behind(row.result, row.better)}


def subject(row: Row) -> Subject:
    """Return what tells the measured side of a row from others: machine, kernel, point, metric and candidate."""
    point = (row.machine, row.kernel, row.workload, tuple(sorted(row.params.items())))
    return (*point, row.metric, row.candidate)


def by_candidate(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of each machine, kernel and pair of schedulers, in their order."""
    return grouped(rows, lambda row: (row.machine, row.kernel, row.baseline, row.candidate))


def by_place(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of each machine and kernel, in their order."""
    return grouped(rows, lambda row: (row.machine, row.kernel))


def grouped(rows: list[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Return the rows with the same key together, groups in the order of their first rows."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def unpaired(cells: list[CellResult], others: list[CellResult]) -> list[CellResult]:
    """Return the cells of one run that have no partner in another one."""
    known = {_cell(other) for other in others}
    return [cell for cell in cells if _cell(cell) not in known]


def runs(before: list[CellResult], after: list[CellResult]) -> list[Row]:
    """Compare two runs of the same cells, scheduler by scheduler."""

    def rows(variant: str) -> list[Row]:
        left, right = _of_variant(before, variant), _of_variant(after, variant)
        groups = _paired(left, right, lambda cell: (cell.sched, *_place(cell)))
        return [row for paired in groups for row in _rows(paired, "before", "after")]

    judged = _judged(rows(""), before)
    kept = _robust(judged, {name: rows(name) for name in _variants(before) if name in _variants(after)})
    return [row.model_copy(update={"point": f"{row.point} ({row.scheds[0].partition('=')[0]})"}) for row in kept]


def _robust(rows: list[Row], varied: dict[str, list[Row]]) -> list[Row]:
    """Return the rows with those verdicts alone whose sign stands in every variation of the model.

    Args:
        rows: judged.
        varied: by variation, the same comparisons; one that is missing does not confirm anything.
    """
    signs = {name: {_identity(row): np.sign(row.result.effect) for row in others} for name, others in varied.items()}
    kept = []
    for row in rows:
        sign = np.sign(row.result.effect)
        fragile = [name for name, known in signs.items() if known.get(_identity(row)) != sign]
        lost = {"fragile": fragile, "verdict": Verdict.NO_DIFFERENCE}
        kept.append(row.model_copy(update=lost) if fragile and row.verdict.decided else row)
    return kept


def _identity(row: Row) -> tuple[Hashable, ...]:
    return (*subject(row), row.baseline, *row.scheds)


def _variants(cells: list[CellResult]) -> list[str]:
    return list(dict.fromkeys(cell.variant for cell in cells if cell.variant))


def _of_variant(cells: list[CellResult], variant: str) -> list[CellResult]:
    return [cell for cell in cells if cell.variant == variant]


Pair = tuple[CellResult, CellResult]


def _place(cell: CellResult) -> tuple[Hashable, ...]:
    return (cell.machine, cell.kernel, cell.workload, tuple(sorted(cell.params.items())))


def _cell(cell: CellResult) -> tuple[Hashable, ...]:
    return (cell.sched, cell.variant, cell.seed, *_place(cell))


def _paired(
    baseline: list[CellResult], candidate: list[CellResult], place: Callable[[CellResult], Hashable]
) -> list[list[Pair]]:
    """Return, for each place, the pairs of cells with the same seed, in the order of the seeds."""
    partners = {(place(cell), cell.seed): cell for cell in candidate}
    groups: dict[Hashable, list[Pair]] = {}
    for cell in sorted(baseline, key=lambda cell: cell.seed):
        if other := partners.get((place(cell), cell.seed)):
            groups.setdefault(place(cell), []).append((cell, other))
    return list(groups.values())


def _rows(paired: list[Pair], baseline: str, candidate: str) -> Iterator[Row]:
    """Yield a row for each judged metric of one place; verdicts and short names come later."""
    first, other = paired[0]
    scheds = [cell.provenance["sched_option"] for cell in (first, other)]
    for metric, about in first.provenance["metrics"].items():
        # A seed has no value of what its traced twin failed to measure, nor of a percentile of too few samples.
        whole = [(left, right) for left, right in paired if metric in left.metrics and metric in right.metrics]
        if not whole:
            continue
        before = [left.metrics[metric] for left, _ in whole]
        after = [right.metrics[metric] for _, right in whole]
        share, resolution = about["unit"] == units.SHARE, about.get("resolution")
        result = stats.paired(before, after, share=share, resolution=resolution)
        yield Row(
            machine=first.machine,
            kernel=first.kernel,
            workload=first.workload,
            params=first.params,
            point=first.workload,
            metric=metric,
            unit=about["unit"],
            better=about["better"],
            baseline=baseline,
            candidate=candidate,
            scheds=list(dict.fromkeys(scheds)),
            baseline_values=before,
            candidate_values=after,
            seeds=[left.seed for left, _ in whole],
            flags=first.provenance["flags"],
            result=result,
            corrected_p=result.p,
            verdict=Verdict.NO_DIFFERENCE,
        )


def _judged(rows: list[Row], cells: list[CellResult]) -> list[Row]:
    """Return the rows with p-values corrected over the table, verdicts, and short names of the points."""
    several = varying(cells)
    return [
        row.model_copy(
            update={
                "corrected_p": p,
                "verdict": stats.verdict(row.result, p, row.better),
                "point": " ".join([row.workload, *_short(row, several)]),
            }
        )
        for row, p in zip(rows, stats.holm([row.result.p for row in rows]), strict=True)
    ]


def _short(row: Row, several: set[tuple[str, str]]) -> list[str]:
    return [f"{name}={value}" for name, value in row.params.items() if (row.workload, name) in several]


def varying(cells: list[CellResult]) -> set[tuple[str, str]]:
    """Return the (workload, parameter) pairs that take more than one value."""
    values: dict[tuple[str, str], set[Value]] = {}
    for cell in cells:
        for name, value in cell.params.items():
            values.setdefault((cell.workload, name), set()).add(value)
    return {key for key, seen in values.items() if len(seen) > 1}
