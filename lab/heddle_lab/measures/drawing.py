"""An interval of a timeline as an SVG: a row per CPU, a colour per task, idle left empty, waiting tasks below.

Nothing outside the picture is needed. Text has the colour of the page around it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from heddle_lab.measures.events import Ints
from heddle_lab.measures.fluid import Floats, accumulated
from heddle_lab.measures.switches import Place
from heddle_lab.measures.timeline import Timeline

SUFFIX = ".svg"

_LEFT, _TOP, _AXIS, _CHART, _LEGEND = 46, 8, 20, 44, 18
_COLUMNS = 1000
"""width of the rows, in units of the picture; what is shorter than one is blended"""

_LEVELS = 4
"""shades of a column that is busy for a part of its time"""

_HUES = 24
_GOLDEN_ANGLE = 137.508
"""between the hues of two tasks that follow one another, so that they differ much"""

_NAMED = 8
"""tasks in the legend"""


def svg(timeline: Timeline, start_ns: int, end_ns: int, where: Mapping[int, Place] | None = None) -> str:
    """Draw an interval.

    Args:
        timeline: of the window in which the interval lies.
        start_ns: its begin.
        end_ns: its end, after its begin.
        where: places of the CPUs, which draws a gap between LLCs.
    """
    rows = _rows(timeline.cpus, where or {})
    tasks = _by_time(timeline, start_ns, end_ns)
    cells = _cells(timeline, start_ns, end_ns)
    chart = _TOP + rows.height + _AXIS
    height = chart + _CHART + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _COLUMNS + 8} {height}" width="100%" '
        'role="img" font-family="system-ui,sans-serif" font-size="10" fill="currentColor">',
        f"<title>{timeline.cpus} CPUs, {_duration(end_ns - start_ns)}</title>",
        *_frames(rows),
        *_bars(cells, rows, {pid: rank for rank, pid in enumerate(tasks)}),
        *_labels(rows),
        *_axis(end_ns - start_ns, _TOP + rows.height, chart + _CHART),
        *_waiting(timeline, start_ns, end_ns, chart),
        *_legend(timeline, tasks, height - 5),
        "</svg>",
    ]
    return "\n".join(parts)


@dataclass(frozen=True)
class _Rows:
    """Where the CPUs' rows are."""

    tops: list[float]
    row: float
    height: float


def _rows(cpus: int, where: Mapping[int, Place]) -> _Rows:
    """Stack the rows: 16 CPUs take 16 units each, 192 take 3, LLCs stand apart."""
    row = min(16.0, max(3.0, 576 / cpus))
    tops, top = [], 0.0
    for cpu in range(cpus):
        if cpu and cpu in where and where[cpu].llc != where[cpu - 1].llc:
            top += 4
        tops.append(_TOP + top)
        top += row
    return _Rows(tops, row, top)


def _by_time(timeline: Timeline, start: int, end: int) -> list[int]:
    """Return the tasks that ran in the interval, by their CPU time, the longest first."""
    tasks = timeline.tasks()
    span = np.minimum(tasks.end_ns, end) - np.maximum(tasks.start_ns, start)
    inside = span > 0
    pids, place = np.unique(tasks.pid[inside], return_inverse=True)
    total = np.bincount(place, weights=span[inside], minlength=len(pids))
    return [int(pid) for pid in pids[np.lexsort((pids, -total))]]


@dataclass(frozen=True)
class _Cells:
    """Columns of rows with a task in them: the one that ran longest, and how much of the time was busy."""

    cpu: Ints
    column: Ints
    pid: Ints
    level: Ints
    """1.._LEVELS"""


def _cells(timeline: Timeline, start: int, end: int) -> _Cells:
    edges = np.linspace(start, end, _COLUMNS + 1)
    tasks = timeline.tasks()
    tasks = tasks.take((tasks.end_ns > start) & (tasks.start_ns < end))
    begin, stop = np.maximum(tasks.start_ns, start), np.minimum(tasks.end_ns, end)
    first = np.clip(np.searchsorted(edges, begin, side="right") - 1, 0, _COLUMNS - 1)
    last = np.clip(np.searchsorted(edges, stop, side="left") - 1, first, _COLUMNS - 1)
    # One piece for each column that a run touches.
    count = last - first + 1
    run = np.repeat(np.arange(len(first)), count)
    column = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    length = np.minimum(stop[run], edges[column + 1]) - np.maximum(begin[run], edges[column])
    cell = tasks.cpu[run] * _COLUMNS + column
    pair, place = np.unique(np.stack([cell, tasks.pid[run]]), axis=1, return_inverse=True)
    share = np.bincount(place.ravel(), weights=length, minlength=pair.shape[1]) / ((end - start) / _COLUMNS)
    order = np.lexsort((-share, pair[0]))
    cells, leader = np.unique(pair[0][order], return_index=True)
    busy = np.bincount(np.searchsorted(cells, pair[0]), weights=share, minlength=len(cells))
    level = np.clip(np.ceil(busy * _LEVELS - 1e-9), 1, _LEVELS).astype(np.int64)
    return _Cells(cells // _COLUMNS, cells % _COLUMNS, pair[1][order][leader], level)


def _bars(cells: _Cells, rows: _Rows, rank: Mapping[int, int]) -> list[str]:
    """Draw the cells: neighbours that look the same are one bar, all bars of a look one path."""
    hue = np.array([rank[pid] % _HUES for pid in cells.pid.tolist()], dtype=np.int64)
    look = hue * (_LEVELS + 1) + cells.level
    breaks = (
        (np.diff(cells.cpu, prepend=-1) != 0)
        | (np.diff(cells.column, prepend=-2) != 1)
        | (np.diff(look, prepend=-1) != 0)
    )
    heads = np.flatnonzero(breaks)
    widths = np.diff(np.append(heads, len(look)))
    paths: dict[int, list[str]] = {}
    thick = _number(rows.row * 0.9)
    for head, width in zip(heads.tolist(), widths.tolist(), strict=True):
        left, top = _LEFT + int(cells.column[head]), _number(rows.tops[int(cells.cpu[head])])
        paths.setdefault(int(look[head]), []).append(f"M{left} {top}h{width}v{thick}h-{width}z")
    drawn = []
    for key, bars in sorted(paths.items()):
        number, level = divmod(key, _LEVELS + 1)
        drawn.append(f'<path fill="{_colour(number)}" fill-opacity="{level / _LEVELS:g}" d="{"".join(bars)}"/>')
    return drawn


def _colour(number: int) -> str:
    return f"hsl({number * _GOLDEN_ANGLE % 360:.0f} 60% {(48, 58, 40)[number % 3]}%)"


def _frames(rows: _Rows) -> list[str]:
    """Draw the ground of the rows, so that idle is seen as such."""
    bars = "".join(f"M{_LEFT} {_number(top)}h{_COLUMNS}v{_number(rows.row * 0.9)}h-{_COLUMNS}z" for top in rows.tops)
    return [f'<path fill="currentColor" fill-opacity="0.06" d="{bars}"/>']


def _labels(rows: _Rows) -> list[str]:
    """Name as many CPUs as are readable."""
    every = next(step for step in (1, 2, 4, 8, 16, 32) if step * rows.row >= 10)
    return [
        f'<text x="{_LEFT - 5}" y="{_number(top + rows.row / 2 + 3.5)}" text-anchor="end">{cpu}</text>'
        for cpu, top in enumerate(rows.tops)
        if cpu % every == 0
    ]


def _axis(span: int, top: float, bottom: float) -> list[str]:
    """Draw about eight marks at round times."""
    step = 10 ** int(np.floor(np.log10(max(span, 1))))
    step = next(part for part in (step // 10, step // 5, step // 2, step, step * 2) if part and span / part <= 10)
    marks = []
    for time in range(0, span + 1, step):
        x = _number(_LEFT + time / span * _COLUMNS)
        marks.append(f'<path stroke="currentColor" stroke-opacity="0.15" d="M{x} {_TOP}V{_number(bottom)}"/>')
        anchor = "end" if time > span * 0.97 else "start" if time == 0 else "middle"
        marks.append(f'<text x="{x}" y="{_number(top + 13)}" text-anchor="{anchor}">{_duration(time)}</text>')
    return marks


def _waiting(timeline: Timeline, start: int, end: int, top: float) -> list[str]:
    """Draw how many tasks wait, on average over each column."""
    level = waiting_level(timeline, start, end, _COLUMNS)
    most = float(level.max(initial=0.0))
    scale = (_CHART - 8) / max(most, 1.0)
    base = top + _CHART - 4
    points = "".join(
        f"L{_LEFT + column} {_number(base - value * scale)}h1" for column, value in enumerate(level.tolist())
    )
    label = f"waiting, up to {most:.3g}"
    return [
        f'<path fill="currentColor" fill-opacity="0.35" d="M{_LEFT} {_number(base)}{points}V{_number(base)}z"/>',
        f'<text x="{_LEFT + 4}" y="{_number(top + 8)}">{label}</text>',
    ]


def waiting_level(timeline: Timeline, start_ns: int, end_ns: int, columns: int) -> Floats:
    """Return the mean number of waiting tasks in each of some equal parts of an interval."""
    edges = np.linspace(start_ns, end_ns, columns + 1)
    start, end = timeline.waits.start_ns.astype(np.float64), timeline.waits.end_ns.astype(np.float64)
    waited = accumulated(edges, edges, (start, start), (end, end))
    return np.maximum(np.diff(waited) / ((end_ns - start_ns) / columns), 0.0)


def _legend(timeline: Timeline, tasks: list[int], y: float) -> list[str]:
    parts, x = [], float(_LEFT)
    for number, pid in enumerate(tasks[:_NAMED]):
        name = f"{timeline.comms.get(pid, '?')} {pid}"
        parts.append(f'<rect x="{_number(x)}" y="{_number(y - 8)}" width="8" height="8" fill="{_colour(number)}"/>')
        parts.append(f'<text x="{_number(x + 11)}" y="{_number(y)}">{escape(name)}</text>')
        x += 24 + 5.6 * len(name)
    if len(tasks) > _NAMED:
        parts.append(f'<text x="{_number(x)}" y="{_number(y)}">and {len(tasks) - _NAMED} more</text>')
    return parts


def _duration(time_ns: int) -> str:
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if time_ns >= size:
            return f"{time_ns / size:g} {unit}"
    return f"{time_ns} ns" if time_ns else "0"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
