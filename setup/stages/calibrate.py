"""The measuring program of `heddle calibrate`: static, for any x86-64 machine and any guest."""

from __future__ import annotations

from .. import cache
from ..context import Context

SOURCE = "lab/calibrate"
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-s")


def run(context: Context) -> None:
    """Compile it, unless these sources were compiled before; point `current` at it."""
    files = sorted((context.paths.root / SOURCE).glob("*.[ch]"))
    target = context.paths.calibrate / cache.key(*FLAGS, *files)
    if not target.exists():
        with cache.building(target) as work:
            sources = [file for file in files if file.suffix == ".c"]
            context.run(["gcc", *FLAGS, *sources, "-lm", "-o", work / "heddle-calibrate"])
    cache.point(context.paths.calibrate / "current", target)
