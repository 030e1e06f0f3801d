"""Python environments named by what is in them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from . import cache
from .context import Context


def provide(context: Context, parent: Path, requirements: str) -> Path:
    """A virtual environment under PARENT with exactly REQUIREMENTS (pip's format, with hashes).

    Scripts in an environment hold its path, so it is filled where it will stay;
    the file `complete`, written last, tells it from one that was interrupted.
    """
    venv = parent / cache.key(requirements, str(parent), sys.executable, sys.version)
    if (venv / "complete").exists():
        return venv
    shutil.rmtree(venv, ignore_errors=True)
    context.say(f"creating {venv}")
    context.run([sys.executable, "-m", "venv", venv])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        context.run(
            [venv / "bin" / "python3", "-m", "pip", "install", "--require-hashes", "--no-deps",
             "--disable-pip-version-check", "--only-binary=:all:", "-r", file.name],
            show=r"^(Collecting \S+)",
        )  # fmt: skip
    (venv / "complete").touch()
    return venv
