"""Unfairness: how far tasks and groups fall behind the ideal fair machine of `fluid`.

The lag of a task at a time is what the fluid machine has served it by then, less what the real one has. Above zero
it was deprived. `max_lag_ns` is the largest lag of any task at any time. It counts CPU time: not that a slow CPU, or
one that shares its core, does less in it.

Measured are tasks of the fair classes (kernel priority 100 and above, sched_ext among them). While another task runs
(real time, stop), its CPU is not there to be shared. The ideal takes no notice of affinity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from heddle_lab.measures import fluid
from heddle_lab.measures.events import Ints
from heddle_lab.measures.fluid import Arrivals, Floats
from heddle_lab.measures.timeline import IDLE, End, Timeline

WINDOW_NS = 100_000_000
"""of the share error"""

FAIR_PRIO = 100
"""priorities from here on are nice values (include/linux/sched/prio.h, MAX_RT_PRIO)"""

NICE_0_PRIO, NICE_0_WEIGHT = 120, 1024

# kernel/sched/core.c, sched_prio_to_weight: nice -20 to 19; a step is about 1.25.
NICE_WEIGHTS = (
    *(88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916),
    *(9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277),
    *(1024, 820, 655, 526, 423, 335, 272, 215, 172, 137),
    *(110, 87, 70, 56, 45, 36, 29, 23, 18, 15),
)


@dataclass(frozen=True)
class Shares:
    """What tasks are entitled to, beside what their nice values say."""

    weights: Mapping[int, float] = field(default_factory=dict)
    """pid -> weight, such as 3 for SCHED_IDLE, whose priority does not show it"""
    groups: Mapping[int, str] = field(default_factory=dict)
    """pid -> group; tasks without one are together in the group ''"""
    group_weights: Mapping[str, float] = field(default_factory=dict)
    """group -> weight; 100 unless given, as in cgroup v2's cpu.weight"""


@dataclass(frozen=True)
class Fairness:
    """Lags and errors over a window."""

    max_lag_ns: int
    """of the most deprived task"""
    max_lag_pid: int
    """which one; 0 if there is no task"""
    min_lag_ns: int
    """of the most favoured task, zero or below"""
    group_lag_ns: dict[str, int]
    """largest lag of each group as a whole"""
    share_error: float
    """0..1: the part of the CPU time that went to another task than in the fluid machine, or to another group if
    there are groups; mean over windows"""


def weight_of_prio(prio: int) -> float:
    """Return the weight of a kernel priority; one that is not known counts as nice 0."""
    if prio < FAIR_PRIO:
        return NICE_0_WEIGHT
    return NICE_WEIGHTS[min(prio - FAIR_PRIO, len(NICE_WEIGHTS) - 1)]


def measure(timeline: Timeline, shares: Shares | None = None, window_ns: int = WINDOW_NS) -> Fairness:
    """Measure lag and share error.

    Args:
        timeline: the window.
        shares: weights and groups that priorities do not show.
        window_ns: length of the windows of the share error.
    """
    return _Comparison(timeline, shares or Shares()).measure(window_ns)


class _Comparison:
    """The real machine beside the fluid one; times are relative to the window's begin."""

    def __init__(self, timeline: Timeline, shares: Shares) -> None:
        self._timeline = timeline
        prios = timeline.prios
        other = [IDLE, *(pid for pid, prio in prios.items() if prio < FAIR_PRIO)]
        self._runs = timeline.runs.take(~np.isin(timeline.runs.pid, other))
        self._tasks = np.setdiff1d(np.append(self._runs.pid, timeline.waits.pid), other)
        self._span = timeline.duration_ns
        names = sorted({shares.groups.get(pid, "") for pid in self._tasks.tolist()})
        self._groups = names
        keys = [
            (
                float(shares.weights.get(pid, weight_of_prio(prios.get(pid, NICE_0_PRIO)))),
                names.index(shares.groups.get(pid, "")),
            )
            for pid in self._tasks.tolist()
        ]
        classes = sorted(set(keys))
        self._class = np.array([classes.index(key) for key in keys], dtype=np.int64)
        self._group = np.array([group for _, group in keys], dtype=np.int64)
        self._ideal = fluid.simulate(
            self._arrivals(),
            self._capacity(),
            classes,
            self._class.tolist(),
            [float(shares.group_weights.get(name, 100.0)) for name in names],
            (0, self._span),
        )
        self._served = _Served(
            np.searchsorted(self._tasks, self._runs.pid),
            self._runs.start_ns - timeline.start_ns,
            self._runs.end_ns - timeline.start_ns,
            len(self._tasks),
            self._span,
        )

    def measure(self, window_ns: int) -> Fairness:
        if not len(self._tasks):
            return Fairness(0, 0, 0, {}, 0.0)
        # A task's lag rises only while it waits and falls only while it runs.
        task = np.searchsorted(self._tasks, self._runs.pid)
        everyone = np.arange(len(self._tasks))
        high = self._lag(
            np.concatenate([task, everyone]),
            np.concatenate([self._runs.start_ns - self._timeline.start_ns, np.full(len(everyone), self._span)]),
        )
        low = self._lag(task, self._runs.end_ns - self._timeline.start_ns)
        worst = int(np.argmax(high))
        return Fairness(
            max_lag_ns=round(max(float(high[worst]), 0.0)),
            max_lag_pid=int(self._tasks[np.concatenate([task, everyone])[worst]]),
            min_lag_ns=round(min(float(low.min(initial=0.0)), 0.0)),
            group_lag_ns=self._group_lags() if len(self._groups) > 1 else {},
            share_error=self._share_error(window_ns),
        )

    def _lag(self, task: Ints, time: Ints) -> Floats:
        return self._ideal.received(task, self._class[task], time) - self._served.until(task, time)

    def _arrivals(self) -> Arrivals:
        """Join each task's runs and waits into spells between two sleeps; a spell's work is its CPU time."""
        runs, waits, start = self._runs, self._timeline.waits, self._timeline.start_ns
        mine = np.isin(waits.pid, self._tasks)
        pid = np.concatenate([runs.pid, waits.pid[mine]])
        begin = np.concatenate([runs.start_ns, waits.start_ns[mine]]) - start
        work = np.concatenate([runs.end_ns - runs.start_ns, np.zeros(np.count_nonzero(mine), dtype=np.int64)])
        sleeps = np.concatenate(
            [np.isin(runs.end, (End.BLOCKED, End.DEAD)), np.zeros(np.count_nonzero(mine), dtype=bool)]
        )
        # A run of no length after its wait keeps its place: waits come before runs of the same begin.
        order = np.lexsort((np.concatenate([np.ones(len(runs)), np.zeros(np.count_nonzero(mine))]), begin, pid))
        pid, begin, work, sleeps = pid[order], begin[order], work[order], sleeps[order]
        if not len(pid):
            return Arrivals(begin, pid, work.astype(np.float64))
        first = np.append(True, (np.diff(pid) != 0) | sleeps[:-1])
        heads = np.flatnonzero(first)
        tails = np.append(heads[1:], len(pid)) - 1
        total = np.add.reduceat(work, heads).astype(np.float64)
        total[~sleeps[tails]] = np.inf
        by_time = np.argsort(begin[heads], kind="stable")
        return Arrivals(begin[heads][by_time], np.searchsorted(self._tasks, pid[heads])[by_time], total[by_time])

    def _capacity(self) -> tuple[Ints, Ints]:
        """Return the number of CPUs without a task of another class, over time."""
        runs, start = self._timeline.runs, self._timeline.start_ns
        other = (runs.pid != IDLE) & ~np.isin(runs.pid, self._tasks)
        times = np.concatenate([[0], runs.start_ns[other] - start, runs.end_ns[other] - start])
        ones = np.ones(np.count_nonzero(other), dtype=np.int64)
        unique, place = np.unique(times, return_inverse=True)
        changes = np.bincount(place, weights=np.concatenate([[self._timeline.cpus], -ones, ones]))
        return unique, np.cumsum(changes).astype(np.int64)

    def _group_lags(self) -> dict[str, int]:
        """Return each group's largest lag, at every time when what it gets changes in either machine."""
        lags = {}
        start = (self._runs.start_ns - self._timeline.start_ns).astype(np.float64)
        end = (self._runs.end_ns - self._timeline.start_ns).astype(np.float64)
        group = self._group[np.searchsorted(self._tasks, self._runs.pid)]
        for number, name in enumerate(self._groups):
            kinds = np.unique(self._class[self._group == number]).tolist()
            mine = (start[group == number], end[group == number])
            edges = np.unique(np.concatenate([*mine, *(self._ideal.curves[kind][0] for kind in kinds)]))
            real = fluid.accumulated(edges, edges, (mine[0], mine[0]), (mine[1], mine[1]))
            lags[name] = round(max(float((self._ideal.together(kinds, edges) - real).max()), 0.0))
        return lags

    def _share_error(self, window_ns: int) -> float:
        """Return half the sum of the differences between real and ideal shares, mean over the windows."""
        edges = np.append(np.arange(0, self._span, window_ns), self._span)
        tasks = np.repeat(np.arange(len(self._tasks)), len(edges))
        times = np.tile(edges, len(self._tasks))
        shape = (len(self._tasks), len(edges))
        entity = self._group if len(self._groups) > 1 else np.arange(len(self._tasks))
        real = _per_entity(np.diff(self._served.until(tasks, times).reshape(shape), axis=1), entity)
        ideal = _per_entity(
            np.diff(self._ideal.received(tasks, self._class[tasks], times).reshape(shape), axis=1), entity
        )
        used = (real.sum(axis=0) > 0) & (ideal.sum(axis=0) > 0)
        if not used.any():
            return 0.0
        error = np.abs(real[:, used] / real[:, used].sum(axis=0) - ideal[:, used] / ideal[:, used].sum(axis=0))
        return float(np.average(error.sum(axis=0) / 2, weights=np.diff(edges)[used]))


def _per_entity(values: Floats, entity: Ints) -> Floats:
    summed = np.zeros((int(entity.max()) + 1, values.shape[1]))
    np.add.at(summed, entity, values)
    return summed


class _Served:
    """CPU time that tasks really got, as a function of time."""

    def __init__(self, task: Ints, start: Ints, end: Ints, tasks: int, span: int) -> None:
        order = np.lexsort((start, task))
        self._span = span + 1
        self._keys = task[order] * self._span + start[order]
        self._start, self._end = start[order], end[order]
        self._sums = np.concatenate([[0], np.cumsum(self._end - self._start)])
        self._first = np.searchsorted(task[order], np.arange(tasks))

    def until(self, task: Ints, time: Ints) -> Ints:
        """Return what each task got until a time."""
        if not len(self._keys):
            return np.zeros(len(task), dtype=np.int64)
        place = np.searchsorted(self._keys, task * self._span + time, side="right") - 1
        own = place >= self._first[task]
        place = np.maximum(place, 0)
        whole = self._sums[place] - self._sums[self._first[task]]
        part = np.minimum(time, self._end[place]) - self._start[place]
        return np.where(own, whole + part, 0)
