"""The terminal's table."""

import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heddle_lab import comparison, means, sequential, stats, tracing, units
from heddle_lab.comparison import Row
from heddle_lab.native import conditions
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict

_STYLE = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.SAME: "cyan", Verdict.UNKNOWN: "dim"}


def footnote(rows: list[Row]) -> str:
    """Return the rule of the verdicts."""
    return (
        "↑ higher is better, ↓ lower is better. Medians over seeds; difference: geometric mean of the paired ratios, "
        "with Student's 95 % interval.\n"
        f"same: the whole interval lies within {units.part(rows[0].result.fraction)}. "
        f"better, worse: corrected p < {stats.ALPHA}, by Holm over the primary metrics of a table, "
        "by Benjamini and Hochberg over its other metrics.\n"
        f"unknown: none of these, or fewer than {stats.FEWEST} pairs."
    )


def perturbation(cells: list[CellResult]) -> str:
    """Return the line that says how much tracing changed the traced twins; empty if there were none."""
    found = [cell.metrics[tracing.PERTURBATION] for cell in cells if tracing.PERTURBATION in cell.metrics]
    if not found:
        return ""
    middle, most = units.percent(statistics.median(found)), units.percent(max(found, key=abs))
    names = ", ".join(name for name, about in tracing.METRICS.items() if about.judged)
    return (
        f"{names}: from boots of their own with tracepoints recorded, "
        f"whose elapsed_ns differed by {middle} (median; at most {most}). All else comes from boots without."
    )


def surroundings(cells: list[CellResult]) -> str:
    """Return the line that says what else this machine did while it ran cells by itself; empty if guests ran them."""
    return conditions.summary([cell.metrics for cell in cells])


def show(rows: list[Row], cells: list[CellResult], console: Console, looks: Sequence[int] = ()) -> None:
    """Print the tables of each contestant, the means, the rule of the verdicts, and what tracing changed.

    The text depends on the arguments alone: no wall time, no date.

    Args:
        rows: compared rows.
        cells: what was measured.
        console: where to print.
        looks: numbers of pairs at which the comparison was looked at.
    """
    for group in comparison.by_candidate(rows):
        for title, part in titled(group):
            console.print(_table(part, title))
        if line := comparison.wanting(group):
            console.print(f"{line}\n", highlight=False)
    if summary := means.lines(rows):
        console.print("\n".join([*summary, ""]), highlight=False)
        console.print(f"{means.FOOTNOTE} {means.EXTREME}", style="dim", highlight=False)
    if rows:
        console.print(footnote(rows), style="dim", highlight=False)
    if line := sequential.note(looks):
        console.print(line, style="dim", highlight=False)
    for line in filter(None, (perturbation(cells), surroundings(cells), *comparison.replays(cells))):
        console.print(line, style="dim", highlight=False)
    for row in rows:
        if row.fragile:
            what = f"{row.point} {row.metric}: its sign depends on the model ({', '.join(row.fragile)})"
            console.print(what, style="dim", highlight=False)


def titled(group: list[Row]) -> list[tuple[str, list[Row]]]:
    """Return the two tables of one contestant with their titles: primaries and other metrics; none that is empty."""
    first = group[0]
    what = f"{first.candidate} against {first.baseline} on {first.where}"
    parts = [("", comparison.primaries(group)), ("other metrics, ", comparison.others(group))]
    return [(f"{what}, {name}{comparison.pairs(part)}", part) for name, part in parts if part]


def show_single(cells: list[CellResult], console: Console) -> None:
    """Print the medians of a run without a comparison."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("machine", "kernel", "variant", "workload", "metric"):
        table.add_column(heading)
    table.add_column("median", justify="right")
    groups: dict[tuple[str, str, str, str, str], list[CellResult]] = {}
    for cell in cells:
        point = " ".join([cell.workload, *(f"{name}={value}" for name, value in cell.params.items())])
        for metric in [name for name in cell.provenance["metrics"] if name in cell.metrics and not cell.variation]:
            groups.setdefault((cell.machine, cell.provenance["kernel"], cell.variant, point, metric), []).append(cell)
    for key, group in groups.items():
        metric = key[-1]
        middle = statistics.median(cell.metrics[metric] for cell in group)
        table.add_row(*key, units.quantity(middle, group[0].provenance["metrics"][metric]["unit"]))
    console.print(table)
    for line in filter(None, (surroundings(cells), *comparison.replays(cells))):
        console.print(line, style="dim", highlight=False)


def _table(rows: list[Row], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("workload", overflow="fold")
    table.add_column("metric", no_wrap=True)
    for heading in (rows[0].baseline, rows[0].candidate, "difference", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        verdict = Text(row.word, style=_STYLE[row.verdict])
        numbers = [row.baseline_median, row.candidate_median, row.effect, row.interval]
        table.add_row(row.point, row.heading, *numbers, verdict)
    return table
