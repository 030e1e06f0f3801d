"""The ideal fair machine: generalised processor sharing (Parekh & Gallager 1993) on several CPUs.

Every task has a weight and can use at most one CPU. At each instant the CPUs are shared in proportion to the weights
of the tasks that have work; what a task cannot use, because its share would exceed one CPU, goes to the others (water
filling). With groups the CPUs are first shared among the groups, by their weights and up to one CPU for each of
their tasks with work, then within each group.

The fluid machine gets the same work at the same times as the real one: a task that wakes brings the CPU time that it
really used until it slept again. It may finish earlier or later than it did in reality; it never owes anything for
time when it had nothing to do.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from heddle_lab.measures.events import Ints

Floats = NDArray[np.float64]


def water_fill(capacity: float, demands: list[tuple[float, float]]) -> list[float]:
    """Share a capacity by weight, no one getting more than its cap.

    Args:
        capacity: in CPUs.
        demands: weight and cap (in CPUs) of each.

    Returns:
        What each gets, in the order given; the sum is the capacity or the sum of the caps, whichever is less.
    """
    shares = [0.0] * len(demands)
    weight_left = sum(weight for weight, _ in demands)
    # The one that reaches its cap first has the least cap per weight; the rest share what is left.
    for index in sorted(range(len(demands)), key=lambda index: demands[index][1] / demands[index][0]):
        weight, cap = demands[index]
        shares[index] = min(cap, capacity * weight / weight_left)
        capacity -= shares[index]
        weight_left -= weight
        if weight_left <= 0:
            break
    return shares


@dataclass(frozen=True)
class Arrivals:
    """Work that tasks bring, in order of time."""

    time_ns: Ints
    task: Ints
    """index of the task"""
    work_ns: Floats
    """CPU time; infinite for a task that still had work at the window's end"""


@dataclass(frozen=True)
class Service:
    """What the fluid machine gave, as functions of time."""

    task: Ints
    """the busy periods, ordered by task and time: whose"""
    start_ns: Floats
    end_ns: Floats
    """infinite if it was not over when the window was"""
    virtual_start: Floats
    virtual_end: Floats
    """a period's service is what the virtual time of its class moved within it"""
    kind: Ints
    """class of each period's task"""
    curves: list[tuple[Floats, Floats]]
    """class -> times and virtual times at them; straight in between"""

    def virtual(self, kind: int, time_ns: Floats) -> Floats:
        """Return the service that a task of a class with work all the time would have had until some times, ns."""
        times, values = self.curves[kind]
        return np.interp(time_ns, times, values)

    def received(self, task: Ints, kind: Ints, time_ns: Ints) -> Floats:
        """Return the service of tasks until some times, ns.

        Args:
            task: index of each point's task.
            kind: its class.
            time_ns: the times, within the window.
        """
        if not len(self.task):
            return np.zeros(len(task))
        span = float(max(time_ns.max(initial=0), self.start_ns.max())) + 1
        place = np.searchsorted(self.task * span + self.start_ns, task * span + time_ns, side="right") - 1
        own = (place >= 0) & (self.task[np.maximum(place, 0)] == task)
        place = np.maximum(place, 0)
        now = np.empty(len(task))
        for number in range(len(self.curves)):
            rows = kind == number
            now[rows] = self.virtual(number, time_ns[rows].astype(np.float64))
        whole = self.virtual_end - self.virtual_start
        # Service before each period, within its task.
        before = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(whole), whole, 0.0))[:-1]])
        first = np.searchsorted(self.task, self.task, side="left")
        before -= before[first]
        inside = np.minimum(now, self.virtual_end[place]) - self.virtual_start[place]
        return np.where(own, before[place] + np.maximum(inside, 0.0), 0.0)

    def together(self, kinds: list[int], time_ns: Floats) -> Floats:
        """Return the service of all tasks of some classes until some times, ns."""
        total = np.zeros(len(time_ns))
        for kind in kinds:
            mine = self.kind == kind
            total += accumulated(
                time_ns,
                self.virtual(kind, time_ns),
                (self.start_ns[mine], self.virtual_start[mine]),
                (self.end_ns[mine], self.virtual_end[mine]),
            )
        return total


def accumulated(time_ns: Floats, now: Floats, starts: tuple[Floats, Floats], ends: tuple[Floats, Floats]) -> Floats:
    """Return how far intervals got in sum until some times, each moving with one clock while it lasts.

    Args:
        time_ns: the times.
        now: what the clock shows at them.
        starts: times at which the intervals begin, and what the clock shows then.
        ends: the same of their ends; infinite times are not reached.
    """
    (opened, begun), (closed, done) = (_totals(time_ns, *edge) for edge in (starts, ends))
    return (opened - closed) * now - begun + done


def _totals(time_ns: Floats, at: Floats, clock: Floats) -> tuple[Floats, Floats]:
    """Return how many edges lie at or before some times, and the sum of their clocks."""
    order = np.argsort(at, kind="stable")
    count = np.searchsorted(at[order], time_ns, side="right")
    return count.astype(np.float64), np.concatenate([[0.0], np.cumsum(clock[order])])[count]


@dataclass
class _Class:
    """Tasks of one group and one weight: in the fluid machine they differ only in when they came."""

    weight: float
    group: int
    active: int = 0
    virtual: float = 0.0
    """service of a task of this class that always has work, ns"""
    rate: float = 0.0
    """CPUs that each of its tasks gets now"""
    finish: list[tuple[float, int]] = field(default_factory=list)
    """heap of (virtual time at which the work is done, task); stale entries are skipped"""
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def simulate(
    arrivals: Arrivals,
    capacity: tuple[Ints, Ints],
    classes: list[tuple[float, int]],
    task_class: list[int],
    group_weights: list[float],
    window: tuple[int, int],
) -> Service:
    """Run the fluid machine over a window.

    Args:
        arrivals: the work.
        capacity: times, and from each on the number of CPUs that these tasks may share; the first is the window's
            begin.
        classes: weight and group (an index) of each class.
        task_class: task -> class.
        group_weights: weight of each group.
        window: begin and end, ns.
    """
    return _Machine(classes, task_class, group_weights).run(arrivals, capacity, window)


class _Machine:
    def __init__(self, classes: list[tuple[float, int]], task_class: list[int], group_weights: list[float]) -> None:
        self._classes = [_Class(weight, group) for weight, group in classes]
        self._of_task = [self._classes[number] for number in task_class]
        self._task_class = task_class
        self._group_weights = group_weights
        self._rates: dict[tuple[float, tuple[int, ...]], list[float]] = {}
        """CPUs, and tasks with work in each class -> what `_fill` said"""
        self._until: dict[int, float] = {}
        """task with work -> virtual time at which it is done"""
        self._began: dict[int, tuple[float, float]] = {}
        self._periods: list[tuple[int, float, float, float, float, int]] = []
        self._now = 0.0
        self._cpus = 0.0

    def run(self, arrivals: Arrivals, capacity: tuple[Ints, Ints], window: tuple[int, int]) -> Service:
        self._now = float(window[0])
        for known in self._classes:
            self._record(known)
        inputs = heapq.merge(
            ((float(time), 0, float(cpus), 0.0) for time, cpus in zip(*(a.tolist() for a in capacity), strict=True)),
            (
                (float(time), 1, task, work)
                for time, task, work in zip(
                    arrivals.time_ns.tolist(), arrivals.task.tolist(), arrivals.work_ns.tolist(), strict=True
                )
            ),
        )
        for time, is_arrival, what, work in inputs:
            self._advance(time)
            if is_arrival:
                self._arrive(int(what), work)
            else:
                self._cpus = what
            self._share()
        self._advance(float(window[1]))
        for known in self._classes:
            self._record(known)
        for task, finish in list(self._until.items()):
            self._close(task, finish, inf)
        return self._service()

    def _advance(self, target: float) -> None:
        """Let the machine work until a time, task after task running out of work."""
        while True:
            at, done = target, None
            for known in self._classes:
                while known.finish and self._until.get(known.finish[0][1]) != known.finish[0][0]:
                    heapq.heappop(known.finish)
                if known.finish and known.rate > 0:
                    ready = self._now + max(0.0, known.finish[0][0] - known.virtual) / known.rate
                    if ready <= at:
                        at, done = ready, known
            step = at - self._now
            self._now = at
            for known in self._classes:
                known.virtual += known.rate * step
            if done is None:
                break
            finish, task = heapq.heappop(done.finish)
            done.virtual = max(done.virtual, finish)
            done.active -= 1
            self._close(task, finish, self._now)
            self._share()

    def _arrive(self, task: int, work: float) -> None:
        known = self._of_task[task]
        if task in self._until:
            self._until[task] += work
        else:
            known.active += 1
            self._began[task] = (self._now, known.virtual)
            self._until[task] = known.virtual + work
        if self._until[task] < inf:
            heapq.heappush(known.finish, (self._until[task], task))

    def _close(self, task: int, finish: float, end: float) -> None:
        start, virtual = self._began.pop(task)
        del self._until[task]
        self._periods.append((task, start, end, virtual, finish, self._task_class[task]))

    def _share(self) -> None:
        """Set each class's rate for the tasks that have work now."""
        counts = tuple([known.active for known in self._classes])
        rates = self._rates.get((self._cpus, counts))
        if rates is None:
            rates = self._rates[self._cpus, counts] = self._fill(counts)
        for known, rate in zip(self._classes, rates, strict=True):
            if rate != known.rate:
                self._record(known)
                known.rate = rate

    def _fill(self, counts: tuple[int, ...]) -> list[float]:
        """Return what each task of each class gets, in CPUs, if so many of them have work."""
        members: dict[int, list[int]] = defaultdict(list)
        for number, known in enumerate(self._classes):
            if counts[number]:
                members[known.group].append(number)
        caps = [
            (self._group_weights[group], float(sum(counts[n] for n in inside))) for group, inside in members.items()
        ]
        rates = [0.0] * len(counts)
        for inside, share in zip(members.values(), water_fill(self._cpus, caps), strict=True):
            demands = [(self._classes[n].weight * counts[n], float(counts[n])) for n in inside]
            for number, part in zip(inside, water_fill(share, demands), strict=True):
                rates[number] = part / counts[number]
        return rates

    def _record(self, known: _Class) -> None:
        if not known.times or known.times[-1] < self._now:
            known.times.append(self._now)
            known.values.append(known.virtual)
        else:
            known.values[-1] = known.virtual

    def _service(self) -> Service:
        self._periods.sort()
        task, start, end, virtual_start, virtual_end, kind = (
            np.array(column) for column in (zip(*self._periods, strict=True) if self._periods else ([],) * 6)
        )
        return Service(
            task=task.astype(np.int64),
            start_ns=start.astype(np.float64),
            end_ns=end.astype(np.float64),
            virtual_start=virtual_start.astype(np.float64),
            virtual_end=virtual_end.astype(np.float64),
            kind=kind.astype(np.int64),
            curves=[(np.array(known.times), np.array(known.values)) for known in self._classes],
        )
