"""Packing: whether tasks run on the best cores that are free, where cores are of several kinds or have two threads.

A fast core to oneself is best, a slower core comes next, a second thread of a busy core last. Three numbers:

- `misplaced`: the time in which two threads of some core run tasks while another core idles on which one of the two may
  run;
- `better_idle`: that, and the time in which a core idles while a slower one runs a task that may run there;
- `packed`: the work done, as a part of what the best places would do for as many tasks as have work, the fluid bound.
  That knows of neither affinity nor the price of a move, so that 1 may be out of reach.

Cores idle as a whole, and count for tasks of their own NUMA node only: beyond it, packing alone is worth no move.
With a grace period g, a core counts from g after it went idle, and a place from g after it was taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_lab.machine import Cpu
from heddle_lab.measures import steps
from heddle_lab.measures.affinity import Affinity
from heddle_lab.measures.fluid import Floats
from heddle_lab.measures.steps import Steps
from heddle_lab.measures.timeline import IDLE, Timeline


@dataclass(frozen=True)
class Misplaced:
    """Times in ns by the clock on the wall, however many CPUs are concerned."""

    misplaced_ns: int
    better_idle_ns: int
    window_ns: int

    @property
    def misplaced(self) -> float:
        """The first as a part of the window, 0..1."""
        return self.misplaced_ns / self.window_ns if self.window_ns else 0.0

    @property
    def better_idle(self) -> float:
        """The second as a part of the window, 0..1."""
        return self.better_idle_ns / self.window_ns if self.window_ns else 0.0


def differ(layout: Sequence[Cpu]) -> bool:
    """Tell whether it matters which of some CPUs a task is on: they share cores, or are not equally fast."""
    return len({cpu.core for cpu in layout}) < len(layout) or len({cpu.speed for cpu in layout}) > 1


def misplaced(timeline: Timeline, affinity: Affinity, layout: Sequence[Cpu], grace_ns: int = 0) -> Misplaced:
    """Measure how long tasks are where they had better not be.

    Args:
        timeline: the window.
        affinity: where tasks may run.
        layout: the machine's CPUs, in their order; all are taken to be online.
        grace_ns: how long a core must idle, and a task be at its place, before it counts.
    """
    shared, slower = [], []
    cores = [_core(timeline, affinity, cpus, layout, grace_ns) for cpus in _by_core(layout)]
    for node in {core.node for core in cores}:
        here = [core for core in cores if core.node == node]
        for mask in {mask for core in here for mask in core.sharing}:
            able = [core for core in here if core.mask & mask]
            sharing = steps.total([core.sharing[mask] for core in here if mask in core.sharing])
            shared.append(steps.both(sharing, steps.total([core.idle for core in able])))
            for speed in {core.speed for core in able}:
                below = steps.total(
                    [core.running[mask] for core in here if core.speed < speed and mask in core.running]
                )
                slower.append(steps.both(below, steps.total([core.idle for core in able if core.speed == speed])))
    end = timeline.end_ns
    return Misplaced(
        steps.integral(steps.above(steps.total(shared)), end),
        steps.integral(steps.above(steps.total(shared + slower)), end),
        timeline.duration_ns,
    )


def packed(timeline: Timeline, layout: Sequence[Cpu], smt: int) -> float | None:
    """Return the work done as a part of what the best places would do; none if nothing had work.

    Args:
        timeline: the window.
        layout: the machine's CPUs, in their order.
        smt: a CPU's speed while another thread of its core executes, per cent.
    """
    tasks, waits, end = timeline.tasks(), timeline.waits, timeline.end_ns
    having_work = steps.total([steps.count(tasks.start_ns, tasks.end_ns), steps.count(waits.start_ns, waits.end_ns)])
    bound = _work(having_work, ideal_speeds(layout, smt), end)
    done = 0.0
    for core in _by_core(layout):
        own = tasks.take(np.isin(tasks.cpu, core))
        speeds = ideal_speeds([layout[cpu] for cpu in core], smt)
        done += _work(steps.count(own.start_ns, own.end_ns), speeds, end)
    return done / bound if bound else None


def ideal_speeds(layout: Sequence[Cpu], smt: int) -> Floats:
    """Return what so many tasks can do at once on the best places, for 0 to as many as there are CPUs.

    Args:
        layout: the CPUs.
        smt: a CPU's speed while another thread of its core executes, per cent.

    Returns:
        Instructions per 100 virtual ns.
    """
    first = [layout[core[0]].speed for core in _by_core(layout)]
    second = [layout[core[0]].speed * (2 * smt / 100 - 1) for core in _by_core(layout) if len(core) > 1]
    return np.concatenate([[0.0], np.cumsum(sorted(first + second, reverse=True))])


@dataclass(frozen=True)
class _Core:
    node: int
    speed: int
    mask: int
    idle: Steps
    """1 while no thread runs a task"""
    running: dict[int, Steps]
    """how many tasks with this mask run"""
    sharing: dict[int, Steps]
    """1 while two threads run tasks, one of them with this mask"""


def _core(timeline: Timeline, affinity: Affinity, cpus: list[int], layout: Sequence[Cpu], grace: int) -> _Core:
    """Return what the core of some CPUs did."""
    runs = timeline.runs.take(np.isin(timeline.runs.cpu, cpus))
    idle, tasks = runs.take(runs.pid == IDLE), runs.take(runs.pid != IDLE)
    shared = steps.above(steps.count(tasks.start_ns, tasks.end_ns), 2, grace)
    anywhere = affinity.by_mask(tasks.pid, tasks.start_ns, tasks.end_ns)
    return _Core(
        node=layout[cpus[0]].node,
        speed=layout[cpus[0]].speed,
        mask=sum(1 << cpu for cpu in cpus),
        idle=steps.above(steps.count(idle.start_ns, idle.end_ns), len(cpus), grace),
        running=affinity.by_mask(tasks.pid, tasks.start_ns + grace, tasks.end_ns),
        sharing={mask: steps.both(shared, running) for mask, running in anywhere.items()},
    )


def _by_core(layout: Sequence[Cpu]) -> list[list[int]]:
    """Return the numbers of the CPUs of each core."""
    cores: dict[int, list[int]] = {}
    for number, cpu in enumerate(layout):
        cores.setdefault(cpu.core, []).append(number)
    return list(cores.values())


def _work(running: Steps, speeds: Floats, end: int) -> float:
    """Return what so many tasks do until an end whose speed depends on their number; more than all have the last."""
    times, changes = running
    return float((speeds[np.minimum(np.cumsum(changes), len(speeds) - 1)] * np.diff(times, append=end)).sum())
