"""Does a verdict depend on how long is measured? An experiment at its windows, and at twice those.

A window that is too short shows how a load begins, or the luck of a few events. One that is long enough shows the same
effect at twice its length.
"""

from collections.abc import Sequence

import numpy as np

from heddle_lab import comparison, resultfile
from heddle_lab.cell import Cell
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.tomlfile import Model

FACTOR = 2
"""how much longer the longer window is"""


class Planned(Model):
    """A cell at its window and at the longer one."""

    cell: Cell
    longer: Cell


class Compared(Model):
    """A row at its window and at the longer one."""

    row: Row
    longer: Row

    @property
    def overlaps(self) -> bool:
        """Whether an effect of one size could be behind both: their intervals overlap."""
        before, after = self.row.result, self.longer.result
        return before.low <= after.high and after.low <= before.high

    @property
    def agrees(self) -> bool:
        """Whether the longer window shows an effect of the same sign, within the interval of the shorter one."""
        before, after = self.row.result, self.longer.result
        return bool(np.sign(before.effect) == np.sign(after.effect)) and before.low <= after.effect <= before.high


class Invariance(Model):
    """What came of an experiment at both windows."""

    rows: list[Compared]
    lost: int
    """cells without a result at one of the windows"""


def plan(wanted: Experiment) -> list[Planned]:
    """Return the cells of an experiment, each with its twin of the longer window.

    Raises:
        HeddleError: a name is unknown, or a workload does not say what its window is.
    """
    return [Planned(cell=cell, longer=longer(cell)) for cell in wanted.cells()]


def longer(cell: Cell) -> Cell:
    """Return a cell with the longer window.

    Raises:
        HeddleError: its workload does not say what its window is.
    """
    name = cell.workload.window
    value = cell.params.get(name or "")
    if name is None or value is None or isinstance(value, str):
        raise HeddleError(f"workload '{cell.workload.name}' does not say which parameter is its window: `window`")
    return cell.model_copy(update={"params": cell.params | {name: value * FACTOR}})


def compare(planned: Sequence[Planned], results: dict[str, Results]) -> Invariance:
    """Return every row that both windows have.

    Args:
        planned: the cells.
        results: of their boots, by the cells' keys.
    """
    measured = [pair for one in planned if (pair := _measured(one, results))]
    rows = comparison.schedulers([cell for cell, _ in measured])
    others = {comparison.subject(row): row for row in comparison.schedulers([cell for _, cell in measured])}
    both = [(row, others[subject]) for row in rows if (subject := comparison.subject(row)) in others]
    return Invariance(rows=[Compared(row=row, longer=other) for row, other in both], lost=len(planned) - len(measured))


def _measured(planned: Planned, results: dict[str, Results]) -> tuple[CellResult, CellResult] | None:
    """Return what two cells measured, both under the parameters of the first, which is what pairs their rows."""
    try:
        first, second = (resultfile.from_cell(cell, results[cell.key()]) for cell in (planned.cell, planned.longer))
    except (HeddleError, KeyError):
        return None
    return first, second.model_copy(update={"params": first.params})


def section(found: Invariance) -> list[str]:
    """Return lines of a page in Markdown: how many rows agree, and those that do not."""
    apart = [one for one in found.rows if not one.agrees]
    lost = f" {found.lost} cells were not measured at both windows." if found.lost else ""
    agreeing = len(found.rows) - len(apart)
    beyond = sum(not one.overlaps for one in apart)
    lines = [
        f"Of {len(found.rows)} rows, {agreeing} show an effect at {FACTOR} times their window that has the same sign",
        f"and lies within the interval at their window; {len(apart)} do not. By luck alone it may lie just outside of",
        f"an interval of few seeds: of those {len(apart)}, {beyond} have intervals that do not overlap.{lost}",
    ]
    if apart:
        lines += [
            "",
            "| machine, kernel | workload | metric | baseline | candidate | at its window | 95 % interval | longer |",
            "| --- | --- | --- | --- | --- | --: | --: | --: |",
            *map(_line, apart),
        ]
    return lines


def _line(one: Compared) -> str:
    row = one.row
    names = [f"{row.machine}, Linux {row.kernel}", row.point, row.heading, row.baseline, row.candidate]
    return f"| {' | '.join([*names, row.effect, row.interval, one.longer.effect])} |"
