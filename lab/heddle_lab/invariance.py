"""Does a verdict depend on how it is measured? An experiment as it is, and varied: longer windows, a finer quantum.

A window that is too short shows how a load begins, or the luck of a few events. A quantum that is too coarse shows what
CPUs do to one another too late. Where neither is so, the variation shows the same effect.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np

from heddle_lab import comparison, resultfile
from heddle_lab.cell import Cell
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.tomlfile import Model

Kind = Literal["window", "quantum"]

WINDOW_FACTOR = 2
"""how much longer the longer window is"""

QUANTUM_DIVISOR = 4
"""how much finer the finer quantum is"""

RATIO = 0.03
"""how far apart the ratios of candidate and baseline may be at two quanta"""


class Planned(Model):
    """A cell as it is and varied."""

    cell: Cell
    varied: Cell


class Compared(Model):
    """A row as it is and varied."""

    kind: Kind
    row: Row
    varied: Row

    @property
    def overlaps(self) -> bool:
        """Whether an effect of one size could be behind both: their intervals overlap."""
        before, after = self.row.result, self.varied.result
        return before.low <= after.high and after.low <= before.high

    @property
    def agrees(self) -> bool:
        """Whether both show an effect of the same sign, and it has the same size.

        A longer window: it lies within the interval. A finer quantum: the ratio of candidate and baseline differs by
        at most `RATIO`; of a metric that is compared by its difference, it lies within the interval.
        """
        before, after = self.row.result, self.varied.result
        if np.sign(before.effect) != np.sign(after.effect):
            return False
        if self.kind == "quantum" and before.relative:
            return abs((1 + after.effect) / (1 + before.effect) - 1) <= RATIO
        return before.low <= after.effect <= before.high


class Invariance(Model):
    """What came of an experiment as it is and varied."""

    kind: Kind
    rows: list[Compared]
    lost: int
    """cells without a result in one of the two"""

    TWINS: ClassVar[dict[Kind, str]] = {
        "window": f"at {WINDOW_FACTOR} times their window",
        "quantum": f"at a quantum {QUANTUM_DIVISOR} times finer",
    }
    SIZES: ClassVar[dict[Kind, str]] = {
        "window": "lies within the interval at their window",
        "quantum": f"is a ratio within {RATIO:.0%} of theirs",
    }


def plan(wanted: Experiment, kind: Kind) -> list[Planned]:
    """Return the cells of an experiment, each with its twin.

    Raises:
        HeddleError: a name is unknown, or a workload does not say what its window is.
    """
    twin: Callable[[Cell], Cell] = longer if kind == "window" else finer
    return [Planned(cell=cell, varied=twin(cell)) for cell in wanted.cells()]


def longer(cell: Cell) -> Cell:
    """Return a cell with the longer window.

    Raises:
        HeddleError: its workload does not say what its window is.
    """
    name = cell.workload.window
    value = cell.params.get(name or "")
    if name is None or value is None or isinstance(value, str):
        raise HeddleError(f"workload '{cell.workload.name}' does not say which parameter is its window: `window`")
    return cell.model_copy(update={"params": cell.params | {name: value * WINDOW_FACTOR}})


def finer(cell: Cell) -> Cell:
    """Return a cell with the finer quantum."""
    return cell.model_copy(update={"machine": cell.machine.at_finer_quantum(QUANTUM_DIVISOR)})


def compare(planned: Sequence[Planned], kind: Kind, results: dict[str, Results]) -> Invariance:
    """Return every row that both have.

    Args:
        planned: the cells.
        kind: how they were varied.
        results: of their boots, by the cells' keys.
    """
    measured = [pair for one in planned if (pair := _measured(one, results))]
    rows = comparison.variants([cell for cell, _ in measured])
    others = {comparison.subject(row): row for row in comparison.variants([cell for _, cell in measured])}
    both = [(row, others[subject]) for row in rows if (subject := comparison.subject(row)) in others]
    compared = [Compared(kind=kind, row=row, varied=other) for row, other in both]
    return Invariance(kind=kind, rows=compared, lost=len(planned) - len(measured))


def _measured(planned: Planned, results: dict[str, Results]) -> tuple[CellResult, CellResult] | None:
    """Return what two cells measured, both under the parameters of the first, which is what pairs their rows."""
    try:
        first, second = (resultfile.from_cell(cell, results[cell.key()]) for cell in (planned.cell, planned.varied))
    except (HeddleError, KeyError):
        return None
    return first, second.model_copy(update={"params": first.params})


def section(found: Invariance) -> list[str]:
    """Return lines of a page in Markdown: how many rows agree, and those that do not."""
    apart = [one for one in found.rows if not one.agrees]
    lost = f" {found.lost} cells were not measured in both." if found.lost else ""
    agreeing = len(found.rows) - len(apart)
    beyond = sum(not one.overlaps for one in apart)
    lines = [
        f"Of {len(found.rows)} rows, {agreeing} show an effect {found.TWINS[found.kind]} that has the same sign and",
        f"{found.SIZES[found.kind]}; {len(apart)} do not. Of few seeds, luck alone can put it elsewhere:",
        f"of those {len(apart)}, {beyond} have intervals that do not overlap.{lost}",
    ]
    if apart:
        lines += [
            "",
            f"| machine, kernel | workload | metric | baseline | candidate | effect | 95 % interval | {found.kind} |",
            "| --- | --- | --- | --- | --- | --: | --: | --: |",
            *map(_line, apart),
        ]
    return lines


def _line(one: Compared) -> str:
    row = one.row
    names = [f"{row.machine}, Linux {row.kernel}", row.point, row.heading, row.baseline, row.candidate]
    return f"| {' | '.join([*names, row.effect, row.interval, one.varied.effect])} |"
