"""What a real machine says of itself, before it is known whether a machine file can express it."""

import statistics
from collections.abc import Iterable

from heddle_lab.errors import HeddleError
from heddle_lab.machine import IdleState
from heddle_lab.tomlfile import Model

KINDS = ("P", "E", "LP-E")
"""what kinds of cores are called, the fastest first"""

_ALIKE = 0.9
"""part of the fastest core's speed that a core of the same kind has at least"""

_BITS = 32
"""of each part of a mask such as `00000001,ffffffff`"""


class SeenCpu(Model):
    """Where a logical CPU is. The numbers only tell equal from different."""

    number: int
    """the kernel's"""
    package: int
    llc: int
    core: int
    node: int
    kind: str = ""
    """of core; empty: all are alike"""


class Kind(Model):
    """Cores that are alike, and unlike the others."""

    name: str
    order: int = 0
    """higher is faster; says less than the rank"""
    rank: float | None = None
    """how fast, in any unit; none: unknown"""
    source: str = ""
    """where the rank comes from"""


class Seen(Model):
    """A real machine."""

    source: str
    """what was read"""
    cpus: list[SeenCpu]
    """online, in the order of their numbers"""
    distances: dict[int, dict[int, int]] = {}
    """node -> node -> distance; empty: unknown"""
    kinds: dict[str, Kind] = {}
    """by the names that CPUs have"""
    idle: list[IdleState] = []
    """of the first CPU, the shallowest first; empty: unknown"""
    mwait: bool | None = None
    """whether CPUs idle by MWAIT; none: unknown"""
    memory_mib: int | None = None
    caches: str = ""
    """size of the last-level cache, in words"""
    model: str = ""
    """of the processor"""
    x86: bool = True
    virtual: bool = False
    """whether the machine is a guest itself"""
    remarks: list[str] = []
    """what was left out while reading"""


def cpu_list(text: str) -> set[int]:
    """Return the CPUs of a list such as `0-3,8`.

    Raises:
        HeddleError: it is none.
    """
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.strip().split(","))):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise HeddleError(f"'{text.strip()[:40]}' is no list of CPUs such as 0-3,8")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def cpu_mask(text: str) -> set[int]:
    """Return the CPUs of a mask such as `00000001,ffffffff`, or of hwloc's, whose parts begin with 0x.

    Raises:
        HeddleError: it is none.
    """
    try:
        parts = [int(part, 16) if part else 0 for part in text.strip().split(",")]
    except ValueError:
        raise HeddleError(f"'{text.strip()[:40]}' is no mask of CPUs such as 0000ffff") from None
    mask = 0
    for part in parts:
        mask = mask << _BITS | part
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


def numbered(groups: Iterable[frozenset[int]]) -> dict[frozenset[int], int]:
    """Return a number for each group of CPUs, in the order of their first members."""
    return {group: number for number, group in enumerate(sorted(set(groups), key=sorted))}


def kinds_of(ranks: dict[int, float], source: str) -> tuple[dict[int, str], dict[str, Kind]]:
    """Return the kind of each CPU by how fast it is said to be, and the kinds; empty where all are alike.

    Cores that differ by less than a tenth are alike: of equal cores, firmware prefers some.

    Args:
        ranks: of each CPU, in any unit.
        source: where they come from.
    """
    groups: list[list[int]] = []
    for cpu in sorted(ranks, key=lambda cpu: -ranks[cpu]):
        if not groups or ranks[cpu] < _ALIKE * ranks[groups[-1][0]]:
            groups.append([])
        groups[-1].append(cpu)
    if len(groups) < 2:
        return {}, {}
    names = [*KINDS, *(f"kind{number}" for number in range(len(KINDS), len(groups)))]
    kinds = {
        name: Kind(name=name, rank=statistics.fmean(ranks[cpu] for cpu in group), source=source)
        for name, group in zip(names, groups, strict=False)
    }
    return {cpu: name for name, group in zip(names, groups, strict=False) for cpu in group}, kinds
