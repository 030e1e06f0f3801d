"""How a time is distributed under several schedulers: one curve per cell, on a logarithmic axis, as an SVG."""

import math
from collections.abc import Callable
from html import escape

from heddle_lab import units

_LEFT, _TOP, _WIDTH, _HEIGHT, _AXIS = 34, 8, 560, 170, 34

COLOURS = ("var(--none)", "var(--better)", "var(--worse)", "var(--thread)", "#7a5ea8", "#3f8f5f", "#b5527b")
"""of the baseline and of the candidates in turn"""


def svg(curves: dict[str, list[list[int]]], parts: tuple[int, ...]) -> str:
    """Draw the distributions.

    Args:
        curves: scheduler -> the quantiles of each of its cells, ns.
        parts: what the quantiles are, in thousandths.
    """
    values = [value for cells in curves.values() for cell in cells for value in cell if value > 0]
    low = math.floor(math.log10(min(values, default=1000)))
    high = max(math.ceil(math.log10(max(values, default=1000))), low + 1)

    def across(value: float) -> float:
        return round(_LEFT + (math.log10(max(value, 10**low)) - low) / (high - low) * _WIDTH, 1)

    def up(part: int) -> float:
        return round(_TOP + _HEIGHT * (1 - part / 1000), 1)

    lines = []
    for number, (name, cells) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        for cell in cells:
            points = " ".join(f"{across(value)},{up(part)}" for part, value in zip(parts, cell, strict=True))
            lines.append(f'<polyline fill="none" stroke="{colour}" stroke-opacity="0.75" points="{points}"/>')
        place = f'x="{_LEFT + 8}" y="{_TOP + 14 + 15 * number}"'
        lines.append(f'<text {place} fill="{colour}" font-weight="600">{escape(name)}</text>')
    height = _TOP + _HEIGHT + _AXIS
    return "\n".join(
        [
            f'<svg class="chart" viewBox="0 0 {_LEFT + _WIDTH + 16} {height}" role="img" font-size="12" '
            'fill="currentColor" stroke-width="1.4">',
            f"<title>Distribution of the time from wakeup to run under {escape(', '.join(curves))}</title>",
            *_grid(low, high, across, up),
            *lines,
            "</svg>",
        ]
    )


def _grid(low: int, high: int, across: Callable[[float], float], up: Callable[[int], float]) -> list[str]:
    marks = []
    for power in range(low, high + 1):
        x = across(10**power)
        marks.append(f'<path stroke="currentColor" stroke-opacity="0.18" d="M{x} {_TOP}V{_TOP + _HEIGHT}"/>')
        label = units.quantity(10**power, "ns")
        anchor = "end" if power == high else "middle"
        marks.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 15}" text-anchor="{anchor}">{label}</text>')
    for part, label in ((500, "50 %"), (990, "99 %")):
        marks.append(f'<path stroke="currentColor" stroke-opacity="0.18" d="M{_LEFT} {up(part)}H{_LEFT + _WIDTH}"/>')
        marks.append(f'<text x="{_LEFT - 3}" y="{up(part) + 4}" text-anchor="end">{label}</text>')
    caption = "time from wakeup to run; height: part of the wakeups that took no longer"
    marks.append(f'<text x="{_LEFT}" y="{_TOP + _HEIGHT + 30}" fill-opacity="0.7">{caption}</text>')
    return marks
