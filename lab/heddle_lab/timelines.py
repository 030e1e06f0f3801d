"""Timelines of traced cells: a picture of an interval, and the whole step as a file for ui.perfetto.dev."""

from collections.abc import Collection
from pathlib import Path

from heddle_lab import comparison, files, tracing
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.measures import drawing, perfetto, switches
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.store import Store

FOLDER = "timelines"
"""below that of the results"""

SPAN_NS = 20_000_000
"""length of the picture: some slices"""


def telling(rows: list[Row], cells: list[CellResult]) -> list[CellResult]:
    """Return the cells to draw if nobody chose: both sides of the row with the largest effect, at its first seed.

    Rows with a verdict go first. Only traced cells can be drawn.
    """
    decided = [row for row in rows if row.result.relative and row.verdict.decided]
    for row in sorted(decided or rows, key=lambda row: -abs(row.result.effect)):
        place = (row.machine, row.kernel, row.workload, row.params, row.seeds[0], "")
        found = [cell for cell in cells if traced_key(cell) and _place(cell) == place]
        sides = [cell for cell in found if cell.variant in (row.baseline, row.candidate)]
        if sides:
            return sides
    return [cell for cell in cells if traced_key(cell)][:1]


def _place(cell: CellResult) -> tuple[object, ...]:
    return (cell.machine, cell.kernel, cell.workload, cell.params, cell.seed, cell.variation)


def traced_key(cell: CellResult) -> str | None:
    """Return the name of a cell's traced twin in the store, none if it has none."""
    key: str | None = cell.provenance.get("traced_cell")
    return key


def name(cell: CellResult) -> str:
    """Return the name of a cell's files without suffix; the key tells it from all others."""
    key = str(cell.provenance["cell"])[:8]
    whole = f"{cell.workload}_{cell.machine}_{cell.kernel}_{cell.variant}_seed{cell.seed}_{key}"
    return "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in whole)


def label(cell: CellResult, cells: list[CellResult]) -> str:
    """Return what a picture shows, with the parameters that tell the cell from the table's others."""
    several = comparison.varying(cells)
    params = [f"{key}={value}" for key, value in cell.params.items() if (cell.workload, key) in several]
    system = f"{cell.machine} · Linux {cell.provenance['kernel']}"
    return f"{' '.join([cell.workload, *params])} · {cell.variant} · {system} · seed {cell.seed}"


def write(folder: Path, cell: CellResult, store: Store, start_ns: int | None = None, span_ns: int = SPAN_NS) -> str:
    """Draw a cell below a folder of results; return the files' name without suffix.

    Args:
        folder: of the results.
        cell: a traced cell.
        store: where its twin's trace is.
        start_ns: begin of the picture after the step's; none: such that it shows the middle.
        span_ns: length of the picture.

    Raises:
        HeddleError: the cell was not traced, its trace is not in this store, or the interval lies outside the step.
    """
    key = traced_key(cell)
    results = store.get(key) if key else None
    if results is None:
        missing = "was not traced" if key is None else "is not in the store of this host"
        raise HeddleError(f"{name(cell)} {missing}: measure it with `heddle run --trace`")
    step = cell.provenance["measured_step"]
    _write_files(folder / FOLDER / name(cell), cell, results, step, (start_ns, span_ns))
    return name(cell)


def drop(folder: Path, names: Collection[str]) -> None:
    """Delete what was drawn below a folder of results.

    Args:
        folder: of the results.
        names: of the files without suffix, as `write` returned them; those that are not there are passed over.

    Raises:
        HeddleError: a file cannot be deleted.
    """
    dropped = {f"{name}{suffix}" for name in names for suffix in (drawing.SUFFIX, perfetto.SUFFIX)}
    # The names are from a file that anybody may have written: none leads out of the folder.
    for path in (folder / FOLDER).glob("*"):
        if path.name in dropped:
            files.remove(path)


def _write_files(base: Path, cell: CellResult, results: Results, step: str, interval: tuple[int | None, int]) -> None:
    events = tracing.events_of(results, step)
    line = tracing.line_of(events, results)
    start, span = interval
    span = min(span, line.duration_ns)
    start = (line.duration_ns - span) // 2 if start is None else start
    if not 0 <= start < line.duration_ns:
        raise HeddleError(f"the step takes {line.duration_ns / 1e6:g} ms: no interval begins at {start / 1e6:g} ms")
    begin = line.start_ns + start
    picture = drawing.svg(line, begin, min(begin + span, line.end_ns), switches.places(tracing.topology(results)))
    files.write_text(Path(f"{base}{drawing.SUFFIX}"), picture)
    files.write_bytes(Path(f"{base}{perfetto.SUFFIX}"), perfetto.encode(events, cell.provenance["kernel_release"]))
