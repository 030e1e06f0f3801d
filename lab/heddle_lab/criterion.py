"""Is a built kernel worse than another one? The criterion of `git bisect run`, as an exit status."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from heddle_lab import comparison, detect, scheduler, sequential, stats
from heddle_lab.cell import Cell
from heddle_lab.comparison import Row
from heddle_lab.experiment import DEFAULT_KERNEL, DEFAULT_MACHINE, Experiment, WorkloadPoint
from heddle_lab.resultfile import CellResult
from heddle_lab.runner import Outcome
from heddle_lab.stats import Verdict
from heddle_lab.tomlfile import Model
from heddle_lab.variant import Variant
from heddle_lab.workload import Value

GOOD = 0
"""exit status: not worse"""
BAD = 1
"""exit status: worse"""
SKIP = 125
"""exit status: it cannot be built or measured, or the pairs do not tell"""
ABORT = 128
"""exit status that ends the bisection: what was asked for is wrong, or the kernel to compare with cannot be measured"""

SEEDS = 24
"""pairs at most, by default"""

_REFERENCE, _TESTED = "reference", "tested"


class Criterion(Model):
    """What makes a kernel bad: one metric of one workload, on one machine."""

    workload: str
    params: dict[str, Value] = {}
    metric: str | None = None
    """none: the workload's primary"""
    machine: str = DEFAULT_MACHINE
    sched: str = scheduler.EEVDF
    """the scheduler on both kernels, as a variant takes it"""
    smallest: Annotated[float, Field(gt=0, lt=1)] = stats.SMALLEST_EFFECT
    """the smallest loss that makes a kernel bad, a fraction"""
    seeds: Annotated[int, Field(ge=stats.FEWEST)] = SEEDS
    """pairs at most"""

    def words(self) -> list[str]:
        """Return the options of `heddle verdict` that say the same."""
        words = ["--workload", self.workload, "--machine", self.machine, "--sched", self.sched]
        words += ["--smallest", f"{self.smallest * 100:g}%", "--seeds", str(self.seeds)]
        words += [word for name, value in self.params.items() for word in ("--param", f"{name}={value}")]
        return [*words, *(["--metric", self.metric] if self.metric else [])]

    def cells(self, against: str, tested: str) -> list[Cell]:
        """Return the cells of all pairs.

        Args:
            against: the kernel to compare with, as `--kernel` takes it.
            tested: the one in question.

        Raises:
            HeddleError: a name is unknown, or both kernels are called the same.
        """
        sides = {_REFERENCE: against, _TESTED: tested}
        wanted = Experiment(
            name="verdict",
            summary="",
            machines=[self.machine],
            kernels=[DEFAULT_KERNEL],
            variants=[Variant(name=name, kernel=kernel, sched=self.sched) for name, kernel in sides.items()],
            workloads=[WorkloadPoint(name=self.workload, params=dict(self.params))],
            seeds=self.seeds,
        )
        cells = wanted.cells()
        if self.metric is None:
            return cells
        load = cells[0].workload.judged_by(self.metric)
        return [cell.model_copy(update={"workload": load}) for cell in cells]

    def judge(
        self,
        cells: list[Cell],
        measure: Callable[[list[Cell]], Outcome],
        results: Callable[[list[Cell], Outcome], list[CellResult]],
    ) -> tuple[int, str]:
        """Measure cells until their pairs tell; return the exit status and a line that says why.

        Args:
            cells: what `cells` returned.
            measure: measures some of them.
            results: turns what was measured into metrics.
        """
        search = detect.Search(effect=self.smallest, looks=sequential.looks(self.seeds))
        done, outcome = detect.run(cells, search, measure, results)
        found = results(done, outcome)
        if outcome.interrupted:
            return ABORT, "interrupted"
        rows = comparison.variants(found, search.looks, self.smallest)
        primary = [row for row in rows if row.primary]
        if primary:
            return _status(primary[0]), _line(primary[0])
        why = outcome.failures[0].error if outcome.failures else "no pair has the metric"
        measured = any(cell.variant == _REFERENCE for cell in found)
        return (SKIP, why) if measured else (ABORT, f"the kernel to compare with cannot be measured: {why}")


def _status(row: Row) -> int:
    """Return what a row says of the kernel in question."""
    if row.verdict is Verdict.WORSE:
        return BAD
    good = row.equal or row.verdict.decided or row.verdict is Verdict.SAME
    return GOOD if good or stats.excludes_loss(row.result, row.better) else SKIP


def _line(row: Row) -> str:
    word = {GOOD: "good", BAD: "bad", SKIP: "cannot say"}[_status(row)]
    found = f"{row.effect} ({row.interval}), {row.verdict.value}, {comparison.pairs([row])}"
    return f"{word}: {row.point} {row.metric} {found}"
