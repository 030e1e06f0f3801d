"""The environment in which the workspace is built and tested."""

from __future__ import annotations

import os
from pathlib import Path

from .paths import Paths


def environment(paths: Paths) -> dict[str, str]:
    """Variables that put the unpacked compilers and the Python environment first.

    What is built is the same to the byte wherever the repository and the cache lie:
    in virtual time a longer path in a program's debug lines is another result.
    """
    tools = [paths.toolchain / "bin", paths.venv / "current" / "bin"]
    path = [*map(str, tools), os.environ.get("PATH", "/usr/bin:/bin")]
    # Where several prefixes fit, the compilers take the one named last.
    places = {cargo_home(): "/cargo", paths.cache: "/cache", paths.root: "/heddle"}
    rust = [f"--remap-path-prefix={at}={name}" for at, name in places.items()]
    c = [f"-ffile-prefix-map={at}={name}" for at, name in places.items()]
    return {
        "PATH": os.pathsep.join(path),
        "BPF_CLANG": str(paths.root / "setup" / "bpf-clang"),
        "BPF_EXTRA_CFLAGS_PRE_INCL": " ".join(c),
        "CFLAGS": _with("CFLAGS", c),
        "RUSTFLAGS": _with("RUSTFLAGS", rust),
        "CARGO_TARGET_DIR": str(paths.target),
        "PYTHONPATH": str(paths.root / "lab"),
        "HEDDLE_CACHE": str(paths.cache),
    }


def cargo_home() -> Path:
    """Where cargo unpacks the sources of published crates."""
    return Path(os.environ.get("CARGO_HOME") or "~/.cargo").expanduser().absolute()


def _with(variable: str, flags: list[str]) -> str:
    """VARIABLE's flags and after them those of FLAGS that are not among them."""
    given = os.environ.get(variable, "").split()
    return " ".join([*given, *(flag for flag in flags if flag not in given)])
