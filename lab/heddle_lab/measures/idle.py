"""Wasted idle: CPU time that is idle while a runnable task that may run there waits.

At every instant the wasted CPUs are as many as could be put to work: the largest matching between idle CPUs and
waiting tasks, each CPU with one task that may run there. Their time over that of all CPUs is `wasted_idle`.

Some of it is the price of a wakeup: the interrupt, the way out of idle, the switch. With a grace period g, a CPU
counts from g after it went idle and a task from g after it began to wait, so that only what lasts is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from heddle_lab.measures import steps
from heddle_lab.measures.affinity import Affinity
from heddle_lab.measures.events import Ints
from heddle_lab.measures.steps import Steps
from heddle_lab.measures.timeline import IDLE, Timeline

GRACE_NS = 50_000
"""more than a wakeup takes on any machine here: two quanta of the clock and ten thousand instructions"""


@dataclass(frozen=True)
class WastedIdle:
    """Times in ns of CPU time over the window."""

    wasted_ns: int
    idle_ns: int
    cpu_ns: int
    """all CPUs, the whole window"""

    @property
    def fraction(self) -> float:
        """Wasted time as a part of all CPU time, 0..1."""
        return self.wasted_ns / self.cpu_ns if self.cpu_ns else 0.0


def wasted_idle(timeline: Timeline, affinity: Affinity, grace_ns: int = 0) -> WastedIdle:
    """Measure wasted idle over the window.

    Args:
        timeline: the window.
        affinity: where tasks may run.
        grace_ns: how long a CPU must be idle and a task must wait before it counts.
    """
    runs = timeline.runs.take(timeline.runs.pid == IDLE)
    idle = {cpu: steps.count(runs.start_ns[rows] + grace_ns, runs.end_ns[rows]) for cpu, rows in _by(runs.cpu)}
    waits = timeline.waits
    waiting = affinity.by_mask(waits.pid, waits.start_ns + grace_ns, waits.end_ns)
    nodes = _nest(set(waiting))
    if nodes is None:
        wasted = _matched_exactly(idle, waiting)
    else:
        wasted = sum(steps.integral(_matched(node, idle, waiting), timeline.end_ns) for node in nodes)
    return WastedIdle(wasted, int((runs.end_ns - runs.start_ns).sum()), timeline.cpus * timeline.duration_ns)


def _by(keys: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each value with the indices at which it stands."""
    order = np.argsort(keys, kind="stable")
    values, first = np.unique(keys[order], return_index=True)
    if len(values):  # of nothing, np.split() makes one part
        yield from zip(values.tolist(), np.split(order, first[1:]), strict=True)


@dataclass(frozen=True)
class _Node:
    """A mask and the masks within it."""

    mask: int
    inner: "list[_Node]"


def _nest(masks: set[int]) -> list[_Node] | None:
    """Return masks as trees, each within its parent; none if two overlap without one holding the other."""
    roots: list[_Node] = []
    for mask in sorted(masks, key=int.bit_count):
        inside = [node for node in roots if node.mask & mask == node.mask]
        outside = [node for node in roots if node.mask & mask != node.mask]
        if any(node.mask & mask for node in outside):
            return None
        roots = [*outside, _Node(mask, inside)]
    return roots


def _matched(node: _Node, idle: dict[int, Steps], waiting: dict[int, Steps]) -> Steps:
    """Return how many CPUs of a mask could be put to work.

    Of nested masks the inner ones choose first: what they leave, the outer tasks can use. So within a mask it is the
    lesser of its idle CPUs and of its own waiting tasks plus what the masks within it can match.
    """
    inner = [_matched(child, idle, waiting) for child in node.inner]
    demand = steps.total([waiting[node.mask], *inner])
    supply = steps.total([idle[cpu] for cpu in _cpus(node.mask) if cpu in idle])
    times = np.union1d(demand[0], supply[0])
    level = np.minimum(steps.level(demand, times), steps.level(supply, times))
    return times, np.diff(level, prepend=0)


def _cpus(mask: int) -> list[int]:
    return [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def _matched_exactly(idle: dict[int, Steps], waiting: dict[int, Steps]) -> int:
    """Return the wasted time with masks that overlap in any way: a matching for every state that occurs."""
    parts = [*idle.values(), *waiting.values()]
    times = np.unique(np.concatenate([part[0] for part in parts]))
    states = np.stack([steps.level(part, times) for part in parts], axis=1)[:-1]
    unique, which = np.unique(states, axis=0, return_inverse=True)
    spans = np.bincount(which.ravel(), weights=np.diff(times), minlength=len(unique))
    cpus, masks = list(idle), list(waiting)
    total = 0
    for state, span in zip(unique.tolist(), spans.tolist(), strict=True):
        free = [cpu for cpu, level in zip(cpus, state[: len(cpus)], strict=True) if level]
        tasks = [
            [mask >> cpu & 1 for cpu in free]
            for mask, level in zip(masks, state[len(cpus) :], strict=True)
            for _ in range(min(level, len(free)))
        ]
        if free and tasks:
            match = maximum_bipartite_matching(csr_array(np.array(tasks, dtype=np.int8)), perm_type="column")
            total += int(np.count_nonzero(match >= 0)) * int(span)
    return total
