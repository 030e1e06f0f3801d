"""Of which version a table is: hashes of the sources that decide its cells, and those that have changed since.

A hash is of files of the repository, never of what is built from them: so the answer hangs on the tree alone, not on
what Debian's archive had on that day. Kernels are named by their releases and are no part of it.
"""

from functools import lru_cache

from heddle_lab import hashing, machine, paths, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.machine import Machine
from heddle_lab.workload import Workload

Sources = dict[str, str]
"""what it is of, such as `scheduler` or `machine smp-4` -> the hash of its sources"""

_SOURCES = {
    "scheduler": ["scheduler/src/**/*"],
    "clock": ["lab/clock/patches/*.patch"],
    "guest": ["lab/guest/src/**/*.rs", "lab/guest/image.toml"],
}
"""patterns of the files that decide a part"""

_DIGITS = 12


def of_cell(cell: Cell) -> Sources:
    """Return the hashes of all that decides a cell, as the tree has it now."""
    ours = {"scheduler": _sources("scheduler")} if cell.scheduler.is_own() else {}
    return ours | {
        "clock": _sources("clock"),
        "guest": _sources("guest"),
        f"machine {cell.machine.name}": _of_machine(cell.machine),
        f"workload {cell.workload.name}": _of_workload(cell.workload),
    }


def changed(measured: Sources) -> list[str]:
    """Return the parts whose sources are no longer what they were, such as `scheduler`; sorted."""
    return sorted(name for name, version in measured.items() if _now(name) != version)


@lru_cache(maxsize=256)
def _now(name: str) -> str:
    """Return the hash that the tree gives of a part; empty if it has no such part."""
    kind, _, which = name.partition(" ")
    try:
        if kind == "machine":
            return _of_machine(machine.load(which))
        if kind == "workload":
            return _of_workload(workload.load(which))
        return _sources(name) if name in _SOURCES else ""
    except HeddleError:
        return ""


def _of_machine(box: Machine) -> str:
    return hashing.of_data(box.fingerprint())[:_DIGITS]


def _of_workload(load: Workload) -> str:
    """Hash what runs and how numbers are found; which values parameters have is said by the cells."""
    metrics = {metric.name: metric.fingerprint() for metric in load.metrics}
    return hashing.of_data([load.steps, load.layers, load.packages, metrics])[:_DIGITS]


@lru_cache(maxsize=len(_SOURCES))
def _sources(part: str) -> str:
    files = {path for pattern in _SOURCES[part] for path in paths.REPOSITORY.glob(pattern) if path.is_file()}
    hashes = {str(path.relative_to(paths.REPOSITORY)): hashing.of_file(path) for path in files}
    return hashing.of_data(hashes)[:_DIGITS]
