"""What a trace shows of each task: how long it ran between two sleeps, and what ended each of its sleeps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.timeline import IDLE, SKEW_NS, End, Runs, Timeline

NOBODY = -1
"""in place of a waker: an interrupt, or a task that is not kept"""

LONG = 0.1
"""part of the trace: a run that is not over at its end and this long is one of a task that computes"""

_CHANCE = 3.0
"""a task wakes another by more than chance if it does so this many times as often as interrupts would, if they came as
often while it runs as while a CPU idles"""


@dataclass(frozen=True)
class Wake:
    """A wakeup that ended a sleep of another task."""

    run: int
    """number of the waker's run"""
    spent_ns: int
    """CPU time of that run until then"""
    woken: int
    """pid"""


@dataclass(frozen=True)
class Task:
    """One task. Times are in ns since the trace's begin."""

    pid: int
    comm: str
    prio: int
    """of the kernel; 120 is nice 0"""
    begin_ns: int
    """of its first run"""
    end_ns: int
    """of its last one"""
    first_waker: int | None
    """of its first run: a pid, or `NOBODY`; none: it ran or waited already when the trace began"""
    runs_ns: Ints
    """CPU time of each run: from one sleep to the next, however often it is put aside meanwhile"""
    asleep_ns: Ints
    """begin of the sleep behind each run but the last"""
    awake_ns: Ints
    """its end"""
    wakers: Ints
    """pid of the task that ended it, or `NOBODY`"""
    goes_on: bool
    """it still runs, or waits, at the trace's end"""
    wakes: list[Wake] = field(default_factory=list)
    """in order"""

    @property
    def sleeps_ns(self) -> Ints:
        """Length of each sleep."""
        lengths: Ints = self.awake_ns - self.asleep_ns
        return lengths

    @property
    def cpu_ns(self) -> int:
        """CPU time that it had."""
        return int(self.runs_ns.sum())

    def computes(self, duration_ns: int) -> bool:
        """Tell whether it is in a long run at the trace's end: one that goes on for as long as it is played."""
        return self.goes_on and int(self.runs_ns[-1]) > LONG * duration_ns


def of(line: Timeline, events: Events, keeps: Callable[[int, str], bool]) -> list[Task]:
    """Return the tasks that ran, by pid.

    Args:
        line: the timeline.
        events: what it was made of: wakeups.
        keeps: tells of a pid and a name whether the task is kept.
    """
    runs = line.tasks()
    runs = runs.take(np.lexsort((runs.start_ns, runs.pid)))
    pids = [pid for pid in np.unique(runs.pid).tolist() if keeps(pid, line.comms.get(pid, "?"))]
    histories = {pid: _History(runs.take(np.arange(*np.searchsorted(runs.pid, [pid, pid + 1])))) for pid in pids}
    wakeups = _Wakeups(line, events, histories)
    found = {pid: wakeups.task(pid) for pid in pids}
    for task in found.values():
        times = task.awake_ns.tolist()
        wakers = task.wakers.tolist()
        if task.first_waker is not None:
            times, wakers = [wakeups.first_ns[task.pid], *times], [task.first_waker, *wakers]
        for time, waker in zip(times, wakers, strict=True):
            if waker != NOBODY:
                found[waker].wakes.append(histories[waker].wake(time + line.start_ns, task.pid))
    return [
        replace(task, wakes=sorted(task.wakes, key=lambda wake: (wake.run, wake.spent_ns))) for task in found.values()
    ]


class _History:
    """The runs of one task, in order."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.blocked = np.flatnonzero(runs.end[:-1] == End.BLOCKED)
        """those behind which it sleeps and then runs again"""
        lengths = runs.end_ns - runs.start_ns
        self.spent = np.cumsum(lengths) - lengths
        """CPU time before each"""
        self.total = int(lengths.sum())

    @property
    def sleeps(self) -> bool:
        """Whether it ever sleeps."""
        return len(self.blocked) > 0

    def lengths(self) -> Ints:
        """Return the CPU time from one sleep to the next."""
        ends = np.append(self.spent[self.blocked + 1], self.total)
        return np.diff(ends, prepend=0)

    def wake(self, time_ns: int, woken: int) -> Wake:
        """Return where in its runs it was at a time."""
        at = max(int(np.searchsorted(self.runs.start_ns, time_ns, side="right")) - 1, 0)
        within = min(max(time_ns - int(self.runs.start_ns[at]), 0), int(self.runs.end_ns[at] - self.runs.start_ns[at]))
        number = int(np.searchsorted(self.blocked, at))
        before = int(self.spent[self.blocked[number - 1] + 1]) if number else 0
        return Wake(number, int(self.spent[at]) + within - before, woken)


class _Wakeups:
    """Which wakeup ended which sleep."""

    def __init__(self, line: Timeline, events: Events, histories: dict[int, _History]) -> None:
        kinds = (Kind.WAKING,) if len(events.where(Kind.WAKING)) else (Kind.WAKEUP,)
        at = events.where(*kinds, Kind.WAKEUP_NEW)
        at = at[events.time_ns[at] >= line.start_ns]
        at = at[np.lexsort((events.time_ns[at], events.pid[at]))]
        self._pid, self._time, self._waker = events.pid[at], events.time_ns[at], events.current[at]
        self._line, self._histories = line, histories
        self._idle_ns = max(line.cpus * line.duration_ns - sum(own.total for own in histories.values()), 0)
        self.first_ns: dict[int, int] = {}
        """of each task that slept first: when it was first woken"""

    def task(self, pid: int) -> Task:
        """Return a task, but for what it wakes."""
        own, start = self._histories[pid], self._line.start_ns
        runs, blocked = own.runs, own.blocked
        low, high = np.searchsorted(self._pid, [pid, pid + 1])
        times, wakers = self._time[low:high], self._wakers(pid, self._waker[low:high])
        asleep = runs.end_ns[blocked]
        # CPUs' clocks are not that exactly one: a task may seem to run again before it slept.
        again = np.maximum(runs.start_ns[blocked + 1], asleep)
        woken, by = _last(times, wakers, np.append(runs.start_ns[:1], again))
        # A stamp before the sleep is of an earlier wakeup; one shortly before is that of a waker on another CPU.
        early = woken[1:] < np.maximum(asleep - SKEW_NS, runs.start_ns[blocked])
        awake = np.where(early, again, np.clip(woken[1:], asleep, again))
        slept_first = int(woken[0]) >= 0
        if slept_first:
            self.first_ns[pid] = int(woken[0]) - start
        return Task(
            pid=pid,
            comm=self._line.comms.get(pid, "?"),
            prio=self._line.prios.get(pid, 120),
            begin_ns=int(runs.start_ns[0]) - start,
            end_ns=int(runs.end_ns[-1]) - start,
            first_waker=int(by[0]) if slept_first else None,
            runs_ns=own.lengths(),
            asleep_ns=asleep - start,
            awake_ns=awake - start,
            wakers=np.where(early, NOBODY, by[1:]),
            goes_on=runs.end[-1] not in (End.BLOCKED, End.DEAD),
        )

    def _wakers(self, pid: int, wakers: Ints) -> Ints:
        """Return the wakers of a task, with `NOBODY` for interrupts and tasks that are not kept."""
        found = wakers.copy()
        by_idle = int(np.count_nonzero(wakers == IDLE))
        for waker in np.unique(wakers).tolist():
            its = wakers == waker
            if waker not in self._histories or waker == pid or self._interrupts(waker, int(its.sum()), by_idle):
                found[its] = NOBODY
        return found

    def _interrupts(self, waker: int, count: int, by_idle: int) -> bool:
        """Tell whether wakeups while a task ran were those of interrupts.

        Few traces say so of each. A task that never sleeps computes. And interrupts come while CPUs idle, too.

        Args:
            waker: the task.
            count: how often it woke another one.
            by_idle: how often that one was woken while a CPU idled.
        """
        own = self._histories[waker]
        if not own.sleeps and own.total > LONG * self._line.duration_ns:
            return True
        return count * self._idle_ns <= _CHANCE * by_idle * own.total and by_idle > 0


def _last(times: Ints, values: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return the last of some times up to each of others, and its value; -1 and `NOBODY` where there is none."""
    at = np.searchsorted(times, until, side="right")
    padded_times, padded_values = np.append(-1, times), np.append(NOBODY, values)
    return padded_times[at], padded_values[at]
