"""Scheduler tracepoints as columns: one array per field, so that a million events are a few vector operations."""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Kind(IntEnum):
    """Tracepoints that are understood; the values are those of the column `kind`."""

    SWITCH = 0
    WAKING = 1
    WAKEUP = 2
    WAKEUP_NEW = 3
    MIGRATE = 4
    FORK = 5
    EXEC = 6
    EXIT = 7
    AFFINITY = 8
    OTHER = 9
    """any other: tells which task is on the CPU"""
    SCHEDULE_ENTRY = 10
    """of __schedule()"""
    SCHEDULE_EXIT = 11
    """seen by the task that was switched to"""
    CGROUP = 12
    """a task was moved to another cgroup"""


NAMES = {
    "sched_switch": Kind.SWITCH,
    "sched_waking": Kind.WAKING,
    "sched_wakeup": Kind.WAKEUP,
    "sched_wakeup_new": Kind.WAKEUP_NEW,
    "sched_migrate_task": Kind.MIGRATE,
    "sched_process_fork": Kind.FORK,
    "sched_process_exec": Kind.EXEC,
    "sched_process_exit": Kind.EXIT,
    "affinity": Kind.AFFINITY,
    "schedule_entry": Kind.SCHEDULE_ENTRY,
    "schedule_exit": Kind.SCHEDULE_EXIT,
    "cgroup_attach_task": Kind.CGROUP,
}

# The bits of sched_switch's prev_state (include/trace/events/sched.h, __trace_sched_switch_state).
STATE_LETTERS = {"S": 0x1, "D": 0x2, "T": 0x4, "t": 0x8, "X": 0x10, "Z": 0x20, "P": 0x40, "I": 0x80}
STATE_PREEMPTED = 0x100
STATE_DEAD = STATE_LETTERS["X"] | STATE_LETTERS["Z"]

NO_PRIO = -1
"""prio of an event that carries none"""

INTERRUPT = 0
"""`current` of a wakeup that a hardware interrupt does: idle's pid, as the task that it interrupts has no part in it"""


@dataclass(frozen=True)
class Events:
    """Events in order of time; events of one CPU are in the order in which they happened."""

    time_ns: Ints
    cpu: Ints
    """where it was recorded"""
    kind: Ints
    current: Ints
    """pid that was running there: the switch's previous task, the waker, the parent; 0 is idle"""
    pid: Ints
    """pid of the task that it is about: the switch's next task, the woken, the migrated, the child"""
    value: Ints
    """switch: state of the previous task; wakeups: target CPU; migration: destination; affinity: index into masks;
    cgroup: index into paths"""
    prio: Ints
    """kernel priority of `pid`: below 100 is real time, 120 is nice 0"""
    comms: dict[int, str] = field(default_factory=dict)
    """pid -> last name seen"""
    masks: tuple[int, ...] = ()
    """affinity masks, bit i for CPU i"""
    paths: tuple[str, ...] = ()
    """of cgroups, from the root `/`"""
    cpus: int = 1
    """number of CPUs of the machine"""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.time_ns)

    def where(self, *kinds: Kind) -> Ints:
        """Return the indices of the events of some kinds."""
        return np.flatnonzero(np.isin(self.kind, kinds)) if len(kinds) > 1 else np.flatnonzero(self.kind == kinds[0])


class Names:
    """Collects what tasks are called; a task may change its name, the last one counts."""

    def __init__(self) -> None:
        """Know no task but idle."""
        self._last: dict[int, tuple[int, str]] = {0: (-1, "swapper")}

    def add(self, pid: int, time_ns: int, name: str) -> None:
        """Note the name of a task at a time; idle has one name on all CPUs."""
        if pid and time_ns >= self._last.get(pid, (-1, ""))[0]:
            self._last[pid] = (time_ns, name)

    def comms(self) -> dict[int, str]:
        """Return pid -> last name."""
        return {pid: name for pid, (_, name) in self._last.items()}


COLUMNS = ("time_ns", "cpu", "kind", "current", "pid", "value", "prio")


def merge(
    columns: list[dict[str, Ints]],
    comms: dict[int, str],
    masks: tuple[int, ...] = (),
    cpus: int | None = None,
    paths: tuple[str, ...] = (),
) -> Events:
    """Return events made of several batches, sorted by time.

    Args:
        columns: batches of all `COLUMNS`; within a batch the events of one CPU are in their order.
        comms: pid -> name.
        masks: affinity masks that `value` of affinity events points into.
        cpus: number of CPUs; none: as many as occur.
        paths: cgroups that `value` of cgroup events points into.
    """
    whole = {
        name: np.concatenate([np.asarray(batch[name], dtype=np.int64) for batch in columns])
        if columns
        else np.empty(0, dtype=np.int64)
        for name in COLUMNS
    }
    order = np.argsort(whole["time_ns"], kind="stable")
    seen = int(whole["cpu"].max(initial=0)) + 1
    return Events(
        **{name: column[order] for name, column in whole.items()},
        comms=comms,
        masks=masks,
        paths=paths,
        cpus=max(seen, cpus or 1),
    )
