"""Counts of what the scheduler did: switches, wakeups, preemptions, idle entries, migrations by distance, IPIs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.timeline import IDLE, End, Timeline

IPIS = ("RES", "CAL")
"""lines of /proc/interrupts that count interrupts from another CPU: reschedule and function call (TLB is among CAL)"""


@dataclass(frozen=True)
class Place:
    """Where a CPU sits."""

    core: int
    llc: int
    node: int


def places(topology: list[dict[str, Any]]) -> dict[int, Place]:
    """Return CPU -> place from the guest's `ready` record."""
    return {int(cpu["cpu"]): Place(int(cpu["core"]), int(cpu["llc"]), int(cpu["node"])) for cpu in topology}


@dataclass(frozen=True)
class Counts:
    """Events over the window; those of the idle task are not a task's."""

    switches: int
    wakeups: int
    preemptions: int
    """switches away from a task that could and would have gone on"""
    idle_entries: int


def count(events: Events, timeline: Timeline) -> Counts:
    """Count the events of a window."""
    switched = events.where(Kind.SWITCH)
    tasks = timeline.tasks()
    return Counts(
        switches=len(switched),
        wakeups=len(events.where(Kind.WAKEUP, Kind.WAKEUP_NEW)),
        preemptions=int(np.count_nonzero(tasks.end == End.PREEMPTED)),
        idle_entries=int(np.count_nonzero(events.pid[switched] == IDLE)),
    )


def migrations(timeline: Timeline, where: Mapping[int, Place]) -> dict[str, int]:
    """Count a task's runs on another CPU than its run before, by the distance between the two.

    What counts is where a task runs, not how often the kernel moved it while it waited: that is what its caches feel.

    Returns:
        `smt` to another thread of the core, `core` to another core of the LLC, `llc` to another LLC of the node,
        `node` to another node.
    """
    tasks = timeline.tasks()
    tasks = tasks.take(np.lexsort((tasks.start_ns, tasks.pid)))
    moved = np.flatnonzero((np.diff(tasks.pid) == 0) & (np.diff(tasks.cpu) != 0))
    source, target = tasks.cpu[moved], tasks.cpu[moved + 1]
    distance = {"node": _table(where, "node"), "llc": _table(where, "llc"), "core": _table(where, "core")}
    counts = {}
    left = np.ones(len(moved), dtype=bool)
    for name, level in distance.items():
        apart = left & (level[source] != level[target])
        counts[name] = int(np.count_nonzero(apart))
        left &= ~apart
    return {"smt": int(np.count_nonzero(left)), "core": counts["core"], "llc": counts["llc"], "node": counts["node"]}


def _table(where: Mapping[int, Place], level: str) -> Ints:
    """Return the number of each CPU's core, LLC or node."""
    return np.array([getattr(where[cpu], level) for cpu in sorted(where)], dtype=np.int64)


def ipis(interrupts: Mapping[str, int]) -> int:
    """Return how many interrupts CPUs sent to one another, from the counters of a step."""
    return sum(interrupts.get(name, 0) for name in IPIS)
