"""lab/guest/image.toml: what the layers of the guest's userland hold."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import SetupError

BASE = "base"
KEYS = ("packages", "without", "sources", "drop")


@dataclass(frozen=True)
class Layer:
    """A layer: Debian packages, dependencies left out, source packages, globs of paths removed."""

    name: str
    packages: tuple[str, ...]
    without: tuple[str, ...]
    sources: tuple[str, ...]
    drop: tuple[str, ...]


def load(path: Path) -> list[Layer]:
    """The layers that PATH describes, `base` first; SetupError names what is wrong."""
    try:
        layers = parse(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError, ValueError) as error:
        raise SetupError(f"{path}: {error}") from None
    return layers


def parse(data: dict[str, Any]) -> list[Layer]:
    """The layers in the decoded TOML DATA; ValueError names what is wrong."""
    tables = data.get("layers")
    if not isinstance(tables, dict) or BASE not in tables:
        raise ValueError(f"[layers.{BASE}] is missing")
    if others := set(data) - {"layers"}:
        raise ValueError(f"unknown key {min(others)}; there is only [layers.NAME]")
    return [_layer(name, tables[name]) for name in sorted(tables, key=lambda n: (n != BASE, n))]


def _layer(name: str, table: Any) -> Layer:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or not isinstance(table, dict):
        raise ValueError(f"[layers.{name}]: not a table with a name of a-z, 0-9 and -")
    if unknown := set(table) - set(KEYS):
        raise ValueError(f"layers.{name}.{min(unknown)}: unknown; there are {', '.join(KEYS)}")
    for key in KEYS:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"layers.{name}.{key} must be an array of strings")
    return Layer(name, *(tuple(table.get(key, ())) for key in KEYS))
