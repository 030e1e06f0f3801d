"""Where things lie: the repository's TOML files and the cache that `make setup` fills.

This module is the only one that knows the cache's layout; setup writes the same layout.
"""

import os
from pathlib import Path

from heddle_lab.errors import HeddleError

LAB = Path(__file__).resolve().parents[1]
"""The folder of machines, workloads and experiments."""

REPOSITORY = LAB.parent
OUT = REPOSITORY / "out"
"""of runs by hand and of the demo; not in git"""
"""The root of the repository, where `bin/` is."""

MACHINES = LAB / "machines"
WORKLOADS = LAB / "workloads"
EXPERIMENTS = LAB / "experiments"


def cache() -> Path:
    """Return the cache's root: `$HEDDLE_CACHE`, by default `~/.cache/heddle`."""
    return Path(os.environ.get("HEDDLE_CACHE") or "~/.cache/heddle").expanduser()


def kernel_index() -> Path:
    """Return the file that maps short kernel names to releases."""
    return cache() / "kernels" / "index.json"


def kernel_dir(release: str) -> Path:
    """Return the folder with `vmlinuz` and `config` of a kernel release."""
    return cache() / "kernels" / release


def unpacked_kernels() -> Path:
    """Return the folder of kernels unpacked from their images."""
    return cache() / "vmlinux"


def peers() -> Path:
    """Return the folder of the published schedulers that `python3 -m setup peers` built."""
    return cache() / "peers" / "bin"


def cells() -> Path:
    """Return the folder of measured cells."""
    return cache() / "cells"


def snapshots() -> Path:
    """Return the folder of the guests' snapshots."""
    return cache() / "snapshots"


def memory_ledger() -> Path:
    """Return the folder in which the guests of this host say what memory they hold."""
    return cache() / "memory"


def qemu() -> Path:
    """Return the patched QEMU's binary.

    Raises:
        HeddleError: it is not built yet.
    """
    return _built(cache() / "qemu" / "current" / "bin" / "qemu-system-x86_64", "the patched QEMU")


def firmware() -> Path:
    """Return the folder of the firmware that QEMU loads."""
    return _built(cache() / "qemu" / "current" / "share" / "qemu", "QEMU's firmware")


def profiler(name: str) -> Path:
    """Return a file of the instruction counter: the plugin `instructions.so`, or the guest's program `mark`.

    Raises:
        HeddleError: it is not built yet.
    """
    return _built(cache() / "qemu" / "current" / "lib" / "heddle" / name, "the instruction counter")


def calibrate() -> Path:
    """Return the measuring program of `heddle calibrate`.

    Raises:
        HeddleError: it is not built yet.
    """
    return _built(cache() / "calibrate" / "current" / "heddle-calibrate", "the measuring program")


def guest_program(name: str) -> Path:
    """Return a program that only some guests are given, such as `heddle-memory`.

    Raises:
        HeddleError: it is not built yet.
    """
    return _built(cache() / "image" / "current" / name, "a program of the guest")


def image() -> Path:
    """Return the folder of the guest image's cpio layers.

    Raises:
        HeddleError: it is not built yet.
    """
    return _built(cache() / "image" / "current", "the guest image").resolve()


def _built(path: Path, what: str) -> Path:
    if not path.exists():
        raise HeddleError(f"{what} is missing ({path}): run `make setup`")
    return path
