"""Control groups of a job on this machine: below one of its own, which is removed when the job has ended.

Control files have the names and values of version 2, as in a guest. Where the CPU controller is one of version 1, they
are written in its terms.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from heddle_lab.errors import HeddleError

FILES = ("cpu.max", "cpu.weight")
"""that a job may set"""

PROCESSES = "cgroup.procs"
"""a process that writes 0 to it enters the group"""

_MOUNTS = Path("/proc/self/mounts")


class Hierarchy(NamedTuple):
    """Where the groups of the CPU controller are."""

    root: Path
    version: int


@lru_cache(maxsize=1)
def hierarchy() -> Hierarchy:
    """Return the hierarchy of the CPU controller.

    Raises:
        HeddleError: there is none whose groups a job may have.
    """
    for line in _MOUNTS.read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        root = Path(path)
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(root, 1)
        if kind == "cgroup2" and "cpu" in (root / "cgroup.subtree_control").read_text().split():
            return Hierarchy(root, 2)
    raise HeddleError("no mounted cgroup hierarchy hands on the CPU controller")


def refusal() -> str:
    """Return why a job may have no groups here; empty if it may."""
    if os.geteuid():
        return "only root may make groups"
    try:
        hierarchy()
    except HeddleError as error:
        return str(error)
    return ""


class Groups:
    """The groups of one job."""

    def __init__(self, name: str) -> None:
        """Make none yet.

        Args:
            name: of the group that they are below.
        """
        self._name = name

    def path(self, cgroup: str) -> Path:
        """Return the folder of a group, which is made with its parents if it is missing.

        Raises:
            OSError: the kernel refuses it.
        """
        root, version = hierarchy()
        group = root / self._name
        for part in ("", *cgroup.split("/")):
            if part and version == 2:
                (group / "cgroup.subtree_control").write_text("+cpu")
            group /= part
            group.mkdir(exist_ok=True)
        return group

    def set(self, cgroup: str, file: str, value: str) -> None:
        """Write a control file of a group.

        Raises:
            OSError: the kernel refuses the value.
        """
        for name, text in (_old(file, value) if hierarchy().version == 1 else {file: value}).items():
            (self.path(cgroup) / name).write_text(text)

    def remove(self) -> None:
        """Remove all of them; their processes have ended."""
        if refusal():
            return
        for folder, _, _ in os.walk(hierarchy().root / self._name, topdown=False):
            Path(folder).rmdir()


def _old(file: str, value: str) -> dict[str, str]:
    """Return what version 1 calls a control file of version 2, with its value: file -> text.

    A weight of 100 is 1024 shares (Documentation/admin-guide/cgroup-v2.rst, kernel/sched/core.c, cpu_weight_write_u64).
    """
    if file == "cpu.weight":
        return {"cpu.shares": str(round(int(value) * 1024 / 100)) if value.isdecimal() else value}
    quota, _, period = value.partition(" ")
    return {"cpu.cfs_period_us": period or "100000", "cpu.cfs_quota_us": "-1" if quota == "max" else quota}
