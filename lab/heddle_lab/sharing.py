"""Plain data with what repeats in it written once: a list of values, and a list of the parts that several of them have.

`{"$": N}` stands for the N-th part. A part may refer to those before it.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

_REFERENCE = "$"

_SHORTEST = 12
"""characters of JSON; a reference takes as many"""


def pack(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the values with references, and the parts that these refer to.

    Args:
        values: JSON-able; no dictionary in them has `$` as its only key.
    """
    counts: Counter[str] = Counter()
    for value in values:
        _count(value, counts)
    sharing = _Sharing({text for text, count in counts.items() if count > 1 and len(text) > _SHORTEST})
    return [sharing.put(value) for value in values], sharing.parts


def unpack(packed: list[Any], parts: list[Any]) -> list[Any]:
    """Return the values that `pack` was given; equal parts of them are one object.

    Raises:
        LookupError: a reference leads nowhere.
    """
    whole: list[Any] = []
    for part in parts:
        whole.append(_resolved(part, whole))
    return [_resolved(value, whole) for value in packed]


class _Sharing:
    """The parts that were met so far."""

    def __init__(self, repeated: set[str]) -> None:
        self._repeated = repeated
        self._numbers: dict[str, int] = {}
        self.parts: list[Any] = []

    def put(self, value: Any) -> Any:
        """Return a value with references to its repeated parts, or a reference to itself."""
        text = _text(value)
        if text not in self._repeated:
            return _inner(value, self.put)
        if text not in self._numbers:
            part = _inner(value, self.put)
            self._numbers[text] = len(self.parts)
            self.parts.append(part)
        return {_REFERENCE: self._numbers[text]}


def _count(value: Any, counts: Counter[str]) -> None:
    """Count how often each part is met; what is within a repeated part counts once."""
    text = _text(value)
    counts[text] += 1
    if counts[text] == 1:
        for child in _children(value):
            _count(child, counts)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _inner(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: change(child) for key, child in value.items()}
    return [change(child) for child in value] if isinstance(value, list) else value


def _resolved(value: Any, whole: list[Any]) -> Any:
    if isinstance(value, dict) and value.keys() == {_REFERENCE}:
        return whole[value[_REFERENCE]]
    return _inner(value, lambda child: _resolved(child, whole))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
