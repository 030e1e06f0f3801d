"""What came of cells that were measured: metrics, and lines on those that failed."""

from heddle_lab import resultfile, units
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.runner import Failure


def metrics(cells: list[Cell], found: dict[str, Results], traced: bool) -> tuple[list[CellResult], list[Failure]]:
    """Turn what guests reported into metrics; a cell whose output lacks one is a failure like any other."""
    measured, failures = [], []
    for cell in cells:
        if results := found.get(cell.key()):
            twin = found.get(cell.twin().key()) if traced else None
            try:
                measured.append(resultfile.from_cell(cell, results, twin))
            except HeddleError as error:
                failures.append(Failure(cell=cell.label, error=str(error)))
    return measured, failures


def failure_lines(failures: list[Failure]) -> list[str]:
    """Return one line for each distinct error, with the first cell that met it."""
    cells: dict[str, list[str]] = {}
    for failure in failures:
        cells.setdefault(failure.error, []).append(failure.cell)
    more = {error: units.counted(len(met) - 1, "more cell") for error, met in cells.items()}
    return [f"{met[0]}{f' (and {more[error]})' if len(met) > 1 else ''}: {error}" for error, met in cells.items()]
