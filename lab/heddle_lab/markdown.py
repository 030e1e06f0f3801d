"""The table in Markdown: `table.md` beside the other results, and a block of a page."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from heddle_lab import comparison, files, means, sequential, stats, table, units
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import About, CellResult
from heddle_lab.stats import Verdict

NAME = "table.md"
REPORT = "report.html"
"""beside it: the page"""

_COLUMNS = ("workload", "metric", "baseline", "candidate", "difference", "95 % interval", "verdict")
_BEGIN, _END = "<!-- {name}:begin -->\n", "<!-- {name}:end -->"


def render(rows: list[Row], about: About, folder: str | None = ".") -> str:
    """Return the tables under the command that makes them and links to what lies beside them, and the means.

    Each contestant has a table of primaries and one of its other metrics. Where there are more than two contestants, a
    table with a column for each comes first.

    Args:
        rows: compared rows.
        about: what measured them, and when it was looked at.
        folder: where the page and the results are, as seen from the page that shows the tables; none: not published.
    """
    tables = [*map(_overview, comparison.by_place(rows)), *map(_contestant, comparison.by_candidate(rows))]
    if summary := means.lines(rows):
        tables.append("\n".join([f"{means.FOOTNOTE} {means.EXTREME}", "", *(f"- {line}" for line in summary), ""]))
    if note := sequential.note(about.looks):
        tables.append(f"{note}\n")
    tables += [f"{line}\n" for line in dict.fromkeys(line for row in rows for line in row.replays)]
    heads = [f"`{about.command}`\n", *([f"{links(folder)}\n"] if folder else [])]
    return "\n".join([*heads, *filter(None, tables)])


def links(folder: str, *, table: bool = False) -> str:
    """Return a line of links to what lies in a folder of results.

    Args:
        folder: as seen from the page.
        table: also to the whole table.
    """
    names = {"table": NAME} if table else {}
    names["report"] = REPORT
    return " · ".join(f"[{what}]({Path(folder) / name})" for what, name in names.items())


def summary(cells: list[CellResult], about: About, folder: str) -> str:
    """Return one table with a line for each machine and candidate: its means, and how many of its primaries are what.

    Args:
        cells: those of the baseline first.
        about: what measured them, and when it was looked at.
        folder: where the page and the results are, as seen from the page that shows the table.
    """
    rows = comparison.variants(cells, about.looks)
    words = list(Verdict)
    lines = [f"`{about.command}`\n", f"{links(folder, table=True)}\n"]
    lines.append(_line(["machine", f"of {rows[0].baseline}", *means.KINDS, *(word.value for word in words)]))
    lines.append(_line(["---", "---", *("--:" for _ in (*means.KINDS, *words))]))
    for group in comparison.by_candidate(rows):
        mean = means.of(group)
        found = [row.verdict for row in group if row.primary]
        command_line = group[0].options[-1][-1].removeprefix(f"{group[0].candidate}=")
        texts = [one.short if (one := mean[kind]) else "" for kind in means.KINDS]
        lines.append(
            _line([group[0].machine, f"`{command_line}`", *texts, *(str(found.count(word)) for word in words)])
        )
    note = f"{means.FOOTNOTE} The words count primary metrics, of {comparison.pairs(rows)}."
    return "\n".join([*lines, "", note, ""])


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
    """Return the table with a column for each contestant of one machine and kernel; none for two of them."""
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
        f"{_where(rows)}, means over the seeds without the lowest and the highest value:",
        "",
        _line(["workload", "metric", *names]),
        _line(["---", "---", *("--:" for _ in names)]),
        *(_line([*point, *(of.get(name, "") for name in names)]) for point, of in values.items()),
    ]
    return "\n".join(lines) + "\n"


def _where(rows: list[Row]) -> str:
    """Return the machine and the kernels of some rows, each once."""
    return f"{rows[0].machine}, Linux {' and '.join(dict.fromkeys(kernel for row in rows for kernel in row.kernels))}"


def _contestant(rows: list[Row]) -> str:
    parts = [_table(part, title) for title, part in table.titled(rows)]
    return "\n".join([*parts, *([f"{line}\n"] if (line := comparison.wanting(rows)) else [])])


def _table(rows: list[Row], title: str) -> str:
    first = rows[0]
    headings = [first.baseline if c == "baseline" else first.candidate if c == "candidate" else c for c in _COLUMNS]
    lines = [
        f"{title}:",
        "",
        _line(headings),
        _line(["---", "---", "--:", "--:", "--:", "--:", "---"]),
        *(_line(_cells(row)) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    numbers = [row.baseline_median, row.candidate_median, row.effect, row.interval]
    return [row.point, row.heading, *numbers, row.word]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
