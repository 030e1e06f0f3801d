"""From cells to rows: which variants are compared, over which pairs."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from heddle_lab import fidelity, power, provenance, sequential, stats, units
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Paired, Verdict
from heddle_lab.tomlfile import Model
from heddle_lab.workload import Value

_ARROW = {"higher": "↑", "lower": "↓"}

Subject = tuple[Hashable, ...]
Pair = tuple[CellResult, CellResult]


class Row(Model):
    """One metric of one point, candidate against baseline."""

    machine: str
    kernel: str
    """of the run"""
    machines: list[str]
    """those of both sides, candidate first; one if they share it"""
    kernels: list[str]
    """likewise, the kernels that were booted"""
    backend: str = "clock"
    """what ran the cells (`backends`)"""
    workload: str
    params: dict[str, Value]
    point: str
    """the workload with those parameters that tell it from the table's other points"""
    metric: str
    primary: bool
    """it is the one metric by which its point is judged"""
    unit: str
    better: str
    baseline: str
    """heading of the baseline's column: a variant, or a run"""
    candidate: str
    variants: list[str]
    """names of those in it"""
    options: list[list[str]]
    """the words of the command line that name them"""
    kernel_option: str
    """as `--kernel` takes the run's kernel"""
    baseline_values: list[float]
    """one per seed"""
    candidate_values: list[float]
    seeds: list[int]
    flags: list[str]
    """of `heddle run`, such as `--trace`"""
    result: Paired
    corrected_p: float
    """Holm over the primaries of the table; Benjamini and Hochberg over its other rows"""
    family: int
    """rows that the correction is over"""
    verdict: Verdict
    fragile: list[str] = []
    """variations of the model in which the effect has not the sign that it has here; with any, the word is unknown"""
    mismatch: str = ""
    """of a recorded load: why its replay does not match its trace; then the word is unknown"""
    replays: list[str] = []
    """of a recorded load: lines on how its replay compares with its trace"""

    @property
    def where(self) -> str:
        """The machine and the kernel, both sides' where they differ, and the back end unless it is the clock."""
        backend = "" if self.backend == "clock" else f", back end {self.backend}"
        return f"{' against '.join(self.machines)}, Linux {' against '.join(self.kernels)}{backend}"

    @property
    def word(self) -> str:
        """The verdict, for reading."""
        return f"{self.verdict.value}: {fidelity.WORD}" if self.mismatch else self.verdict.value

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

    @property
    def may_be_decided(self) -> bool:
        """Whether more seeds can decide it."""
        return not self.fragile and not self.mismatch

    @property
    def equal(self) -> bool:
        """Whether both sides have the same values, pair by pair."""
        return self.baseline_values == self.candidate_values

    @property
    def weight(self) -> float:
        """How much the row tells: its effect in multiples of the smallest one that matters; ratios by their logs."""
        effect, smallest = abs(self.result.effect), self.result.smallest
        if self.result.relative:
            effect, smallest = abs(math.log1p(self.result.effect)), math.log1p(smallest)
        return effect / smallest if smallest else effect

    def pairs_needed(self, effect: float | None = None) -> int | None:
        """Return how many pairs would show an effect, by default what matters; see `power.pairs_needed`."""
        return power.pairs_needed(self.result, effect or self.result.fraction, rows=self.family)

    def command(self) -> str:
        """Return the command that measures this row again."""
        return provenance.command(
            self.machine, self.kernel_option, self.workload, self.params, self.options, max(self.seeds), self.flags
        )


def wanting(rows: list[Row]) -> str:
    """Return a line on the pairs that unknown primaries need to show what matters; empty if none is unknown."""
    unknown = [row for row in rows if row.primary and row.verdict is Verdict.UNKNOWN and row.may_be_decided]
    if not unknown:
        return ""
    count = units.counted(len(unknown), "primary row")
    effect = f"a difference of {units.part(unknown[0].result.fraction)}"
    needs = [(needed, row.point) for row in unknown if (needed := row.pairs_needed())]
    if not needs:
        return f"{count} unknown: no number of pairs up to {power.MOST} shows {effect}."
    (least, first), (most, last) = min(needs), max(needs)
    span = f"{least} pairs ({first})" + (f" to {most} ({last})" if most > least else "")
    return f"{count} unknown: {effect} takes {span}."


def pairs(rows: list[Row]) -> str:
    """Return how many seeds were compared, for reading; some rows have fewer, where cells lack a metric."""
    least, most = (pick(row.result.pairs for row in rows) for pick in (min, max))
    return f"{least} to {most} paired seeds" if least < most else f"{most} paired seed{'s' * (most != 1)}"


def variants(cells: list[CellResult], looks: Sequence[int] = (), smallest: float = stats.SMALLEST_EFFECT) -> list[Row]:
    """Compare every variant with the first one, on the same machine, kernel, point and seeds.

    A kernel or parameters of a variant's own are part of what is compared.

    Args:
        cells: what was measured.
        looks: the numbers of pairs at which the comparison was looked at while seeds were added (`sequential`).
        smallest: the smallest effect that matters.
    """
    names = list(dict.fromkeys(cell.variant for cell in cells))

    def rows(of_model: list[CellResult]) -> list[Row]:
        of = {name: [cell for cell in of_model if cell.variant == name] for name in names}
        return [
            row
            for name in names[1:]
            for paired in _paired(of[names[0]], of[name], _place)
            for row in _rows(paired, (names[0], name), _Rule(looks, smallest))
        ]

    tables = by_candidate(_named(rows(_of_variation(cells, "")), cells))
    judged = [row for table in tables for row in _judged(table)]
    return _robust(judged, {name: rows(_of_variation(cells, name)) for name in _variations(cells)})


def against(cells: list[CellResult], baseline: str) -> list[CellResult]:
    """Return the cells with those of one variant first: the baseline of what is compared next.

    Raises:
        HeddleError: no cell is of that variant.
    """
    first = [cell for cell in cells if cell.variant == baseline]
    if not first:
        known = ", ".join(dict.fromkeys(cell.variant for cell in cells))
        raise HeddleError(f"no variant {baseline} was measured; give one of {known}")
    return [*first, *(cell for cell in cells if cell.variant != baseline)]


def subject(row: Row) -> Subject:
    """Return what tells the measured side of a row from others: machine, kernel, point, metric and candidate."""
    point = (row.machine, row.kernel, row.workload, tuple(sorted(row.params.items())))
    return (*point, row.metric, row.candidate)


def by_candidate(rows: list[Row]) -> list[list[Row]]:
    """Return the tables: the rows of each machine, kernel and pair of variants, in their order."""
    return grouped(rows, lambda row: (row.machine, row.kernel, row.baseline, row.candidate))


def by_place(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of each machine and kernel, in their order."""
    return grouped(rows, lambda row: (row.machine, row.kernel))


def telling(rows: list[Row]) -> list[Row]:
    """Return rows with those first that tell most: better and worse, then same, then unknown; large effects first."""
    rank = {Verdict.SAME: 1, Verdict.UNKNOWN: 2}
    return sorted(rows, key=lambda row: (rank.get(row.verdict, 0), -row.weight))


def primaries(rows: list[Row]) -> list[Row]:
    """Return the rows by which points are judged, the most telling first."""
    return telling([row for row in rows if row.primary])


def others(rows: list[Row]) -> list[Row]:
    """Return the rows that are not primary, the most telling first."""
    return telling([row for row in rows if not row.primary])


def grouped(rows: list[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Return the rows with the same key together, groups in the order of their first rows."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def unpaired(before: list[CellResult], after: list[CellResult]) -> list[CellResult]:
    """Return the cells of one run that have no partner in another one."""
    partner = _Partner(before, after)
    known = {(partner.of(cell), cell.variation, cell.seed) for cell in after}
    return [cell for cell in before if (partner.of(cell), cell.variation, cell.seed) not in known]


def runs(before: list[CellResult], after: list[CellResult], smallest: float = stats.SMALLEST_EFFECT) -> list[Row]:
    """Compare two runs over whatever differs; all rows are one table.

    Cells are paired that have the same machine, kernel, variant, workload, parameters and seed. What has one value in
    each run is not asked for: two runs that differ in it are compared over it.

    Args:
        before: the cells of one run.
        after: those of the other.
        smallest: the smallest effect that matters.
    """
    varied = [name for name in _variations(before) if name in _variations(after)]
    found = {name: partners(before, after, name) for name in ("", *varied)}

    def rows(variation: str) -> list[Row]:
        return [row for paired in found[variation] for row in _rows(paired, _sides(paired), _Rule(smallest=smallest))]

    judged = _judged(_named(rows(""), before))
    return _robust(judged, {name: rows(name) for name in varied})


def partners(before: list[CellResult], after: list[CellResult], variation: str = "") -> list[list[Pair]]:
    """Return the pairs of two runs, a list for each point, in the order of the seeds.

    Args:
        before: the cells of one run.
        after: those of the other.
        variation: of the machine's model.
    """
    return _paired(_of_variation(before, variation), _of_variation(after, variation), _Partner(before, after).of)


class _Partner:
    """What the cells of two runs must share to be a pair."""

    def __init__(self, before: list[CellResult], after: list[CellResult]) -> None:
        values: dict[Hashable, tuple[set[Hashable], set[Hashable]]] = {}
        for side, cells in enumerate((before, after)):
            for cell in cells:
                for name, value in self._coordinates(cell):
                    values.setdefault(name, (set(), set()))[side].add(value)
        self._asked = {name for name, (left, right) in values.items() if len(left) > 1 or len(right) > 1}

    def of(self, cell: CellResult) -> Hashable:
        """Return what the partner of a cell has too."""
        asked = [(name, value) for name, value in self._coordinates(cell) if name in self._asked]
        return (cell.workload, tuple(asked))

    @staticmethod
    def _coordinates(cell: CellResult) -> list[tuple[Hashable, Hashable]]:
        params = [((cell.workload, name), value) for name, value in sorted(cell.params.items())]
        return [("machine", cell.machine), ("kernel", cell.kernel), ("variant", cell.variant), *params]


def _sides(paired: list[Pair]) -> tuple[str, str]:
    """Return what to call the two runs of a variant, which is a contestant against itself."""
    before, after = paired[0]
    return f"{before.variant} before", f"{after.variant} after"


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
        lost = {"fragile": fragile, "verdict": Verdict.UNKNOWN}
        kept.append(row.model_copy(update=lost) if fragile and row.verdict.decided else row)
    return kept


def _identity(row: Row) -> tuple[Hashable, ...]:
    return (*subject(row), row.baseline, *row.variants)


def _variations(cells: list[CellResult]) -> list[str]:
    return list(dict.fromkeys(cell.variation for cell in cells if cell.variation))


def _of_variation(cells: list[CellResult], variation: str) -> list[CellResult]:
    return [cell for cell in cells if cell.variation == variation]


def _place(cell: CellResult) -> tuple[Hashable, ...]:
    return (cell.machine, cell.kernel, cell.workload, tuple(sorted(cell.params.items())))


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


class _Rule(NamedTuple):
    """What a comparison's intervals depend on beside the values."""

    looks: Sequence[int] = ()
    smallest: float = stats.SMALLEST_EFFECT

    def paired(self, before: list[float], after: list[float], about: dict[str, Any]) -> Paired:
        """Compare the values of a metric, given what the results say of it."""
        return stats.paired(
            before,
            after,
            share=units.is_share(about["unit"]),
            resolution=about.get("resolution"),
            alpha=sequential.share(self.looks, len(before)),
            smallest=self.smallest,
        )


def _rows(paired: list[Pair], names: tuple[str, str], rule: _Rule) -> Iterator[Row]:
    """Yield a row for each judged metric of one place; verdicts and short names come later."""
    first, other = paired[0]
    both = (other, first)
    options = [cell.provenance["option"] for cell in (first, other)]
    metrics = first.provenance["metrics"]
    for metric, about in metrics.items():
        # A seed has no value of what its traced twin failed to measure, nor of a percentile of too few samples.
        whole = [(left, right) for left, right in paired if metric in left.metrics and metric in right.metrics]
        if not whole:
            continue
        before = [left.metrics[metric] for left, _ in whole]
        after = [right.metrics[metric] for _, right in whole]
        result = rule.paired(before, after, about)
        yield Row(
            machine=first.machine,
            kernel=first.kernel,
            machines=_once(cell.machine for cell in both),
            kernels=_once(cell.provenance["kernel"] for cell in both),
            backend=first.backend,
            workload=first.workload,
            params=first.params,
            point=first.workload,
            metric=metric,
            primary=metric == _primary(metrics),
            unit=about["unit"],
            better=about["better"],
            baseline=names[0],
            candidate=names[1],
            variants=_once([first.variant, other.variant]),
            options=[option for number, option in enumerate(options) if option not in options[:number]],
            kernel_option=first.provenance["kernel_option"],
            baseline_values=before,
            candidate_values=after,
            seeds=[left.seed for left, _ in whole],
            flags=first.provenance["flags"],
            result=result,
            corrected_p=result.p,
            family=1,
            verdict=Verdict.UNKNOWN,
            mismatch=_mismatch(first) or _mismatch(other),
            replays=replays((first, other)),
        )


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def replays(cells: Iterable[CellResult]) -> list[str]:
    """Return lines on how the replays of recorded loads compare with their traces; none without such loads."""
    return list(dict.fromkeys(filter(None, map(_replay, cells))))


def _replay(cell: CellResult) -> str:
    about = cell.provenance.get("fidelity")
    if not about:
        return ""
    if about["mismatch"]:
        return f"{cell.workload}: {fidelity.WORD} its trace: {about['mismatch']}"
    return f"{cell.workload}: its replay against its trace: {about['summary']}"


def _mismatch(cell: CellResult) -> str:
    found: str = cell.provenance.get("fidelity", {}).get("mismatch", "")
    return found


def _primary(metrics: dict[str, Any]) -> str:
    """Return the primary metric; the first where a result was written before workloads declared one."""
    return next((name for name, about in metrics.items() if about.get("primary")), next(iter(metrics)))


def _judged(rows: list[Row]) -> list[Row]:
    """Return the rows of one table with p-values corrected over it, and verdicts."""
    judged: dict[int, Row] = {}
    for primary, correct in ((True, stats.holm), (False, stats.benjamini_hochberg)):
        family = [number for number, row in enumerate(rows) if row.primary is primary]
        for number, p in zip(family, correct([rows[number].result.p for number in family]), strict=True):
            row = rows[number]
            word = Verdict.UNKNOWN if row.mismatch else stats.verdict(row.result, p, row.better)
            update = {"corrected_p": p, "family": len(family), "verdict": word}
            judged[number] = row.model_copy(update=update)
    return [judged[number] for number in range(len(rows))]


def _named(rows: list[Row], cells: list[CellResult]) -> list[Row]:
    """Return the rows with short names of their points."""
    several = varying(cells)
    return [row.model_copy(update={"point": " ".join([row.workload, *_short(row, several)])}) for row in rows]


def _short(row: Row, several: set[tuple[str, str]]) -> list[str]:
    return [f"{name}={value}" for name, value in row.params.items() if (row.workload, name) in several]


def varying(cells: list[CellResult]) -> set[tuple[str, str]]:
    """Return the (workload, parameter) pairs that take more than one value."""
    values: dict[tuple[str, str], set[Value]] = {}
    for cell in cells:
        for name, value in cell.params.items():
            values.setdefault((cell.workload, name), set()).add(value)
    return {key for key, seen in values.items() if len(seen) > 1}
