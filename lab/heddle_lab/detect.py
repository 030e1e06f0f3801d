"""`heddle run --detect X%`: which points get more seeds.

A point gets none if it is decided, or would have shown X % by now, or has all of them.
"""

from collections.abc import Callable, Hashable

import click

from heddle_lab import comparison, sequential, units
from heddle_lab.cell import Cell
from heddle_lab.comparison import Row
from heddle_lab.resultfile import CellResult
from heddle_lab.runner import Outcome
from heddle_lab.stats import Verdict
from heddle_lab.tomlfile import Model

MOST = 96
"""pairs by default"""


class Search(Model):
    """What is to be found, and when to look for it."""

    effect: float
    """fraction of the baseline"""
    looks: list[int]
    """numbers of pairs"""


def run(
    cells: list[Cell],
    search: Search,
    measure: Callable[[list[Cell]], Outcome],
    results: Callable[[list[Cell], Outcome], list[CellResult]],
) -> tuple[list[Cell], Outcome]:
    """Measure cells look by look; return those that were worth it, and what came of them.

    Args:
        cells: of all seeds.
        search: what ends a point.
        measure: measures some cells.
        results: turns what was measured into metrics.
    """
    wanted: list[Cell] = []
    whole = Outcome(results={}, failures=[], interrupted=False)
    places = {_place(cell) for cell in cells}
    before = 0
    for pairs in search.looks:
        batch = [cell for cell in cells if before < cell.seed <= pairs and _place(cell) in places]
        outcome = measure(batch)
        wanted += batch
        whole = Outcome(
            results=whole.results | outcome.results,
            failures=[*whole.failures, *outcome.failures],
            interrupted=outcome.interrupted,
        )
        rows = unfinished(comparison.variants(results(wanted, whole), search.looks), search)
        places, before = {_place(row) for row in rows}, pairs
        if outcome.interrupted or not rows:
            break
        if pairs < search.looks[-1]:
            click.echo(forecast(rows, search), err=True)
    return wanted, whole


def unfinished(rows: list[Row], search: Search) -> list[Row]:
    """Return the primary rows that are unknown and would not show the effect with the pairs that they have."""
    unknown = [row for row in rows if row.primary and row.verdict is Verdict.UNKNOWN and not row.mismatch]
    return [row for row in unknown if not sequential.enough(row.result, search.effect, search.looks, row.family)]


def forecast(rows: list[Row], search: Search) -> str:
    """Return a line on the pairs that unfinished rows are likely to need."""
    needs = [row.pairs_needed(search.effect) for row in rows]
    most = search.looks[-1]
    beyond = sum(needed is None or needed > most for needed in needs)
    points = units.counted(len({_place(row) for row in rows}), "point")
    within = max((needed for needed in needs if needed is not None and needed <= most), default=most)
    line = f"{points} undecided: {units.part(search.effect)} takes up to {within} pairs"
    return f"{line}; {units.counted(beyond, 'row')} more than the {most} of --seeds" if beyond else line


def _place(one: Cell | Row) -> Hashable:
    """Return what the rows of a point share: the machine, the kernel, the workload and its parameters."""
    names = (one.machine, one.kernel, one.workload)
    return (*(name if isinstance(name, str) else name.name for name in names), tuple(sorted(one.params.items())))
