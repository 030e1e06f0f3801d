"""What cells cost on this host, as those told that were measured before."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from heddle_lab.cell import Cell

Traits = tuple[str, ...]

_FILE = "costs.jsonl"


class History:
    """The wall times of measured cells: a line of each, beside the store's results."""

    def __init__(self, folder: Path) -> None:
        """Use a store's folder; lines that are damaged count for nothing."""
        self._file = folder / _FILE
        self._known: dict[Traits, list[float]] = {}
        for traits, wall_s in self._lines():
            for alike in _prefixes(traits):
                self._known.setdefault(alike, []).append(wall_s)

    def add(self, cell: Cell, wall_s: float) -> None:
        """Keep what a cell cost, in wall seconds; a full disk loses the line, and no result for its sake."""
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*_traits(cell), wall_s]) + "\n")

    def expected_s(self, cell: Cell) -> float | None:
        """Return the median wall seconds of the cells that are most like this one; none: none was measured yet."""
        for alike in _prefixes(_traits(cell)):
            if alike in self._known:
                return median(self._known[alike])
        return None

    def _lines(self) -> Iterator[tuple[Traits, float]]:
        if not self._file.is_file():
            return
        for line in self._file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                *traits, wall_s = json.loads(line)
                yield tuple(map(str, traits)), float(wall_s)
            except (ValueError, TypeError):
                continue


def _traits(cell: Cell) -> Traits:
    """Return what decides a cell's cost, what matters most first."""
    recorded = "traced" if cell.traced else "plain"
    return (cell.workload.name, cell.machine.name, cell.point, recorded, cell.contestant.name)


def _prefixes(traits: Traits) -> Iterator[Traits]:
    """Yield the traits, then fewer and fewer of them, down to none."""
    return (traits[:length] for length in range(len(traits), -1, -1))
