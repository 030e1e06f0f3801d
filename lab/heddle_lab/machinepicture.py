"""A machine as a picture: nodes hold LLCs, LLCs hold cores, cores hold hardware threads; fast CPUs are filled more."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

_WIDTH = 336
"""of the whole, so that a phone shows it unscaled"""

_THREAD, _ROW, _GAP, _HEAD = 18, 22, 4, 15


class _Box(NamedTuple):
    """An LLC with its cores laid out."""

    label: str
    cores: list[list[int]]
    """CPUs of each core"""
    columns: int
    width: int
    height: int


def svg(cpus: Sequence[dict[str, Any]], speed: Sequence[int]) -> str:
    """Draw a machine.

    Args:
        cpus: `cpu`, `core`, `llc`, `node` of each, as the guest saw them.
        speed: instructions per 100 ns; CPU i takes entry i, the last repeats.
    """
    boxes = [_box(llc, list(inside)) for llc, inside in groupby(sorted(cpus, key=_place), key=_llc)]
    fastest = max(speed)
    parts: list[str] = []
    x = y = row_height = 0
    for box in boxes:
        if x and x + box.width > _WIDTH:
            x, y, row_height = 0, y + row_height + _GAP * 2, 0
        parts += _drawn(box, x, y, [_speed(speed, cpu) / fastest for core in box.cores for cpu in core])
        x, row_height = x + box.width + _GAP * 2, max(row_height, box.height)
    height = y + row_height
    title = f"{len(cpus)} CPUs in {len(boxes)} last-level cache{'s' if len(boxes) > 1 else ''}"
    return "\n".join(
        [
            f'<svg class="machine" viewBox="0 0 {_WIDTH} {height}" role="img" font-size="9" fill="currentColor">',
            f"<title>{title}</title>",
            *parts,
            "</svg>",
        ]
    )


def _place(cpu: dict[str, Any]) -> tuple[int, int, int, int]:
    return int(cpu["node"]), int(cpu["llc"]), int(cpu["core"]), int(cpu["cpu"])


def _llc(cpu: dict[str, Any]) -> tuple[int, int]:
    return int(cpu["node"]), int(cpu["llc"])


def _speed(speed: Sequence[int], cpu: int) -> int:
    return speed[min(cpu, len(speed) - 1)]


def _box(place: tuple[int, int], cpus: list[dict[str, Any]]) -> _Box:
    cores = [[int(cpu["cpu"]) for cpu in inside] for _, inside in groupby(cpus, key=lambda cpu: cpu["core"])]
    core_width = max(map(len, cores)) * _THREAD + _GAP
    # As wide as needed for two rows of cores, but never wider than the picture.
    columns = max(1, min(max(4, -(-len(cores) // 2)), len(cores), (_WIDTH - _GAP) // core_width))
    rows = -(-len(cores) // columns)
    label = f"node {place[0]} · LLC {place[1]}"
    return _Box(label, cores, columns, columns * core_width + _GAP, _HEAD + rows * (_ROW + _GAP) + 1)


def _drawn(box: _Box, x: int, y: int, filled: list[float]) -> Iterator[str]:
    yield (
        f'<rect x="{x + 0.5}" y="{y + 0.5}" width="{box.width - 1}" height="{box.height - 1}" rx="4" '
        'fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    )
    yield f'<text x="{x + _GAP + 1}" y="{y + 11}" fill-opacity="0.7">{escape(box.label)}</text>'
    core_width = (box.width - _GAP) // box.columns
    shade = iter(filled)
    for number, core in enumerate(box.cores):
        left = x + _GAP + number % box.columns * core_width
        top = y + _HEAD + number // box.columns * (_ROW + _GAP)
        for place, cpu in enumerate(core):
            at = left + place * _THREAD
            yield (
                f'<rect x="{at}" y="{top}" width="{_THREAD - 1}" height="{_ROW}" '
                f'fill="var(--thread)" fill-opacity="{next(shade) * 0.45:.2f}"/>'
            )
            yield f'<text x="{at + (_THREAD - 1) / 2}" y="{top + 14}" text-anchor="middle">{cpu}</text>'
        width = len(core) * _THREAD - 1
        yield (
            f'<rect x="{left}" y="{top}" width="{width}" height="{_ROW}" fill="none" stroke="currentColor" '
            'stroke-opacity="0.25"/>'
        )
