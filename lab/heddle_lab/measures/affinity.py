"""Where a task may run: what the kernel was told, what a child inherits, what a kernel thread's name says.

sched_setaffinity has no tracepoint that shows the mask, but a function probe typed by the kernel's BTF does
(Documentation/trace/fprobetrace.rst): `PROBE` written to tracefs' `dynamic_events` makes the event `EVENT`.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heddle_lab.measures import steps
from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.steps import Steps

EVENT = "heddle:affinity"


def probe(cpus: int) -> str:
    """Return the definition of the probe event that shows every change of a task's affinity.

    Args:
        cpus: number of CPUs; decides how many words of the mask are read.
    """
    words = (cpus + 63) // 64
    return f"f:{EVENT.replace(':', '/')} __set_cpus_allowed_ptr target=p->pid mask=+0(ctx->new_mask):x64[{words}]"


# Threads bound to one CPU carry its number behind the last slash (kernel/smpboot.c, kernel/workqueue.c).
_BOUND = re.compile(
    r"^(?:migration|ksoftirqd|cpuhp|rcuc|irq_work|ktimers|idle_inject|backlog_napi|kworker)/(\d+)(?::.*)?$"
)


@dataclass(frozen=True)
class Affinity:
    """Masks (bit i for CPU i) of tasks that may not run everywhere, with the time from which each holds."""

    everywhere: int
    changes: dict[int, list[tuple[int, int]]]
    """pid -> (time in ns, mask), in order of time"""

    def at(self, pid: int, time_ns: int) -> int:
        """Return a task's mask."""
        mask = self.everywhere
        for since, then in self.changes.get(pid, ()):
            if since > time_ns:
                break
            mask = then
        return mask

    def by_mask(self, pid: Ints, start_ns: Ints, end_ns: Ints) -> dict[int, Steps]:
        """Return for each mask how many of some tasks' intervals hold in which the task may run only there."""
        bound = np.isin(pid, list(self.changes))
        parts: dict[int, list[tuple[int, int]]] = {}
        for task, begin, end in zip(pid[bound].tolist(), start_ns[bound].tolist(), end_ns[bound].tolist(), strict=True):
            edges = [begin, *(time for time, _ in self.changes[task] if begin < time < end), end]
            for left, right in pairwise(edges):
                parts.setdefault(self.at(task, left), []).append((left, right))
        found = {mask: steps.count(*np.array(spans, dtype=np.int64).T) for mask, spans in parts.items()}
        free = steps.count(start_ns[~bound], end_ns[~bound])
        found[self.everywhere] = steps.total([free, found.get(self.everywhere, steps.NOTHING)])
        return {mask: function for mask, function in found.items() if mask and len(function[0])}


def find(events: Events, start: dict[int, int] | None = None) -> Affinity:
    """Return what is known of affinity.

    Args:
        events: of the window.
        start: pid -> mask of tasks before the window; others may run everywhere, but for kernel threads whose
            name says that they are bound.
    """
    everywhere = (1 << events.cpus) - 1
    began = int(events.time_ns[0]) if len(events) else 0
    changes: dict[int, list[tuple[int, int]]] = {}
    for pid, comm in events.comms.items():
        bound = _BOUND.match(comm)
        if bound and int(bound[1]) < events.cpus:
            changes[pid] = [(began, 1 << int(bound[1]))]
    changes |= {pid: [(began, mask & everywhere)] for pid, mask in (start or {}).items()}
    affinity = Affinity(everywhere, changes)
    for row in np.sort(np.concatenate([events.where(Kind.FORK), events.where(Kind.AFFINITY)])).tolist():
        pid, time = int(events.pid[row]), int(events.time_ns[row])
        if events.kind[row] == Kind.AFFINITY:
            changes.setdefault(pid, []).append((time, events.masks[events.value[row]]))
        else:
            inherited = affinity.at(int(events.current[row]), time)
            # A pid may be used again: the child starts with its parent's mask whatever the pid was before.
            if inherited != everywhere or pid in changes:
                changes[pid] = [*changes.get(pid, ()), (time, inherited)]
    return affinity
