"""The laboratory's Python: locked packages, and the commands in bin/."""

from __future__ import annotations

import sys

from .. import cache, virtualenv
from ..context import Context
from ..report import SetupError

# The environment belongs to the cache and so to every clone; which clone's
# heddle_lab runs is the business of the clone's own bin/heddle.
LAUNCHER = """#!/bin/sh
PYTHONPATH='{lab}'${{PYTHONPATH:+:$PYTHONPATH}} exec '{python}' -m heddle_lab "$@"
"""


def run(context: Context) -> None:
    """Provide the environment of lab/requirements.txt; write bin/heddle and bin/scx_heddle."""
    minimum = tuple(map(int, context.pins.python_minimum.split(".")))
    if sys.version_info[:2] < minimum:
        raise SetupError(
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}; "
            f"Heddle needs {context.pins.python_minimum}: make PYTHON=python3.11 setup"
        )
    paths = context.paths
    locked = paths.root / "lab" / "requirements.txt"
    environment = virtualenv.provide(context, paths.venv, locked.read_text())
    cache.point(paths.venv / "current", environment)
    launcher = LAUNCHER.format(lab=paths.root / "lab", python=environment / "bin" / "python3")
    cache.write(paths.root / "bin" / "heddle", launcher, mode=0o755)
    cache.point(paths.root / "bin" / "scx_heddle", paths.target / "release" / "scx_heddle")
