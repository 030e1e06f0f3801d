"""The table in Markdown: `table.md` beside the other results, and a block of a page."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from heddle_lab import comparison, files, means, stats, units
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict

NAME = "table.md"

_COLUMNS = ("workload", "metric", "baseline", "candidate", "difference", "95 % interval", "verdict")
_BEGIN, _END = "<!-- {name}:begin -->\n", "<!-- {name}:end -->"


def render(rows: list[Row], command: str) -> str:
    """Return one table per machine, kernel and pair of schedulers, under the command that makes them, and the means.

    Where there are more than two schedulers, a table with a column for each comes first.
    """
    groups = comparison.by_candidate(rows)
    tables = [*map(_overview, comparison.by_place(rows)), *map(_table, groups)]
    if summary := means.lines(rows):
        tables.append("\n".join([means.FOOTNOTE, "", *(f"- {line}" for line in summary), ""]))
    return "\n".join([f"`{command}`\n", *filter(None, tables)])


def summary(cells: list[CellResult], command: str, rivals: Sequence[str] = ()) -> str:
    """Return one table with a line for each machine and candidate: its means, and how many of its rows are what.

    Args:
        cells: those of the baseline first.
        command: what measured them.
        rivals: schedulers; the rows that are level with the best of them are counted, too.

    Raises:
        HeddleError: no cell is of a rival.
    """
    rows = comparison.schedulers(cells)
    outdone = comparison.outdone(cells, rivals)
    numbers = ["speed", "p99", "better", "worse", "behind", *(["level"] if rivals else []), "rows"]
    lines = [f"`{command}`\n", _line(["machine", f"of {rows[0].baseline}", *numbers])]
    lines.append(_line(["---", "---", *("--:" for _ in numbers)]))
    for group in comparison.by_candidate(rows):
        mean = means.of(group)
        words = [row.verdict for row in group]
        behind = sum(stats.is_behind(row.result, row.better) for row in group)
        level = [len(group) - sum(comparison.subject(row) in outdone for row in group)] if rivals else []
        counts = [words.count(Verdict.BETTER), words.count(Verdict.WORSE), behind, *level, len(group)]
        command_line = group[0].scheds[-1].removeprefix(f"{group[0].candidate}=")
        texts = [mean.get("speed", ""), mean.get("p99", ""), *map(str, counts)]
        lines.append(_line([group[0].machine, f"`{command_line}`", *texts]))
    notes = [means.FOOTNOTE, f"Behind: worse by more than {stats.BEHIND:.0%} by the whole interval."]
    if rivals:
        notes.append(f"Level: behind none of {', '.join(rivals)}, in the same sense.")
    return "\n".join([*lines, "", " ".join(notes), ""])


def insert(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks `<!-- NAME:begin -->` and `<!-- NAME:end -->` of a page.

    Raises:
        HeddleError: the page cannot be read or written, or it lacks the marks.
    """
    begin, end = _BEGIN.format(name=name), _END.format(name=name)
    try:
        old = page.read_text(encoding="utf-8")
    except OSError as error:
        raise HeddleError(f"cannot read {page}: {error.strerror}") from error
    head, found_begin, rest = old.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise HeddleError(f"{page} has no lines '{begin.strip()}' and '{end}' to put the table between")
    files.write_text(page, f"{head}{begin}{text}{end}{tail}")


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table whose first columns, as many as `texts`, are text and all others numbers."""
    marks = ["---" if column < texts else "--:" for column in range(len(headings))]
    return "\n".join([_line(list(headings)), _line(marks), *(_line(list(row)) for row in rows)]) + "\n"


def _overview(rows: list[Row]) -> str:
    """Return the table with a column for each scheduler of one machine and kernel; none for two of them."""
    candidates = list(dict.fromkeys(row.candidate for row in rows))
    if len(candidates) < 2:
        return ""
    values: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = values.setdefault((row.point, row.heading), {})
        line[row.baseline] = units.quantity(stats.without_extremes(row.baseline_values), row.unit)
        line[row.candidate] = units.quantity(stats.without_extremes(row.candidate_values), row.unit)
    names = [rows[0].baseline, *candidates]
    lines = [
        f"{rows[0].machine}, Linux {rows[0].kernel}, means over the seeds without the lowest and the highest value:",
        "",
        _line(["workload", "metric", *names]),
        _line(["---", "---", *("--:" for _ in names)]),
        *(_line([*point, *(of.get(name, "") for name in names)]) for point, of in values.items()),
    ]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row]) -> str:
    first = rows[0]
    headings = [first.baseline if c == "baseline" else first.candidate if c == "candidate" else c for c in _COLUMNS]
    lines = [
        f"{first.machine}, Linux {first.kernel}, {comparison.pairs(rows)}:",
        "",
        _line(headings),
        _line(["---", "---", "--:", "--:", "--:", "--:", "---"]),
        *(_line(_cells(row)) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    numbers = [row.baseline_median, row.candidate_median, row.effect, row.interval]
    return [row.point, row.heading, *numbers, row.verdict.value]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
