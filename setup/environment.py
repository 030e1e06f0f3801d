"""The environment in which the workspace is built and tested."""

from __future__ import annotations

import os

from .paths import Paths


def environment(paths: Paths) -> dict[str, str]:
    """Variables that put the unpacked compilers and the Python environment first."""
    tools = [paths.toolchain / "bin", paths.venv / "current" / "bin"]
    path = [*map(str, tools), os.environ.get("PATH", "/usr/bin:/bin")]
    return {
        "PATH": os.pathsep.join(path),
        "BPF_CLANG": str(paths.toolchain / "bin" / "clang"),
        "CARGO_TARGET_DIR": str(paths.target),
        "PYTHONPATH": str(paths.root / "lab"),
        "HEDDLE_CACHE": str(paths.cache),
    }
