"""When each task ran, and when it waited: the events made into intervals.

A *run* is a task on a CPU without interruption, the idle task (pid 0) included: the runs of a CPU cover the whole
window. A *wait* is the time a task is runnable and does not run: from its wakeup (`sched_waking`, else
`sched_wakeup` or `sched_wakeup_new`), or from the switch that put it aside while it could go on, to the switch to it.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from heddle_lab.measures import events as columns
from heddle_lab.measures.events import Bools, Events, Ints, Kind

IDLE = 0
"""pid of the idle task of every CPU"""

SKEW_NS = 20_000
"""stamps of different CPUs may contradict cause and effect by up to two rounds of the clock's default quantum"""


class End(IntEnum):
    """How a run ended."""

    BLOCKED = 0
    YIELDED = 1
    PREEMPTED = 2
    DEAD = 3
    OPEN = 4
    """it did not within the window"""


class Cause(IntEnum):
    """Why a wait began."""

    WOKEN = 0
    NEW = 1
    YIELDED = 2
    PREEMPTED = 3
    OPEN = 4
    """the task waited already when the window began"""


@dataclass(frozen=True)
class Runs:
    """Runs ordered by CPU, then by time."""

    cpu: Ints
    pid: Ints
    start_ns: Ints
    end_ns: Ints
    end: Ints
    """of `End`"""

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.cpu)

    def take(self, index: Ints | Bools) -> "Runs":
        """Return some of the runs."""
        return Runs(
            self.cpu[index],
            self.pid[index],
            self.start_ns[index],
            self.end_ns[index],
            self.end[index],
        )


@dataclass(frozen=True)
class Waits:
    """Waits ordered by task, then by time; none has length zero."""

    pid: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints
    """of `Cause`"""
    ran: Bools
    """the wait ended with a run; else with the window"""

    def __len__(self) -> int:
        """Return the number of waits."""
        return len(self.pid)

    def take(self, index: Ints | Bools) -> "Waits":
        """Return some of the waits."""
        return Waits(self.pid[index], self.start_ns[index], self.end_ns[index], self.cause[index], self.ran[index])


@dataclass(frozen=True)
class Timeline:
    """A window of time on a machine."""

    start_ns: int
    end_ns: int
    cpus: int
    runs: Runs
    waits: Waits
    instant: int
    """wakeups that the stamps place at or after the switch to the woken task: within the clock's quantum,
    counted as waits of no length"""
    comms: dict[int, str]
    prios: dict[int, int]
    """pid -> last known kernel priority"""

    @property
    def duration_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    def tasks(self) -> Runs:
        """Return the runs of tasks: all but idle."""
        return self.runs.take(self.runs.pid != IDLE)


def build(
    events: Events,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    cpus: int | None = None,
    skew_ns: int = SKEW_NS,
    silent: bool = True,
) -> Timeline:
    """Build the timeline.

    What ran before a CPU's first switch is known from that switch; a CPU without one runs the task that its first
    event names, and is taken for idle if it has none.

    Without any wakeup event only the waits of tasks that were put aside are known.

    Args:
        events: all events of the window.
        start_ns: begin of the window, not after the first event; none: the first event.
        end_ns: end of the window, not before the last event; none: the last event.
        cpus: number of CPUs; none: as the events say.
        skew_ns: how far stamps of different CPUs may contradict cause and effect.
        silent: whether CPUs without an event get a run, too, of idle; else they are only counted.
    """
    first, last = (int(events.time_ns[0]), int(events.time_ns[-1])) if len(events) else (0, 0)
    start = first if start_ns is None else start_ns
    end = last if end_ns is None else end_ns
    runs = _runs(events, start, end, (cpus or events.cpus) if silent else 0)
    waits, instant = _waits(events, runs.take(runs.pid != IDLE), start, end, skew_ns)
    return Timeline(start, end, cpus or events.cpus, runs, waits, instant, events.comms, _prios(events))


def window(line: Timeline, start_ns: int, end_ns: int) -> Timeline:
    """Return a part of a timeline; a run that goes on behind its end is open."""
    start, end = max(start_ns, line.start_ns), min(end_ns, line.end_ns)
    runs, waits = line.runs, line.waits
    runs = runs.take((runs.end_ns > start) & (runs.start_ns < end))
    waits = waits.take((waits.end_ns > start) & (waits.start_ns < end))
    return replace(
        line,
        start_ns=start,
        end_ns=end,
        runs=replace(
            runs,
            start_ns=np.maximum(runs.start_ns, start),
            end_ns=np.minimum(runs.end_ns, end),
            end=np.where(runs.end_ns > end, int(End.OPEN), runs.end),
        ),
        waits=replace(
            waits,
            start_ns=np.maximum(waits.start_ns, start),
            end_ns=np.minimum(waits.end_ns, end),
            ran=waits.ran & (waits.end_ns <= end),
        ),
    )


def _prios(events: Events) -> dict[int, int]:
    known = np.flatnonzero(events.prio != columns.NO_PRIO)
    return dict(zip(events.pid[known].tolist(), events.prio[known].tolist(), strict=True))


def _runs(events: Events, start: int, end: int, cpus: int) -> Runs:
    """Cut every CPU's time at its switches; so many CPUs have runs even without an event."""
    at = events.where(Kind.SWITCH)
    at = at[np.argsort(events.cpu[at], kind="stable")]
    cpu, time = events.cpu[at], events.time_ns[at]
    first = np.flatnonzero(np.diff(cpu, prepend=-1) != 0)
    last = np.append(first[1:], len(at)) - 1 if len(at) else first
    # Each switch starts a run; the one before a CPU's first switch is put before them.
    order = np.argsort(np.concatenate([cpu[first] * 2, cpu * 2 + 1]), kind="stable")
    state = _ends(events.value[at])
    following = np.minimum(np.arange(len(at)) + 1, max(len(at) - 1, 0))
    ends, how = time[following].copy(), state[following].copy()
    ends[last], how[last] = end, int(End.OPEN)
    whole = Runs(
        cpu=np.concatenate([cpu[first], cpu])[order],
        pid=np.concatenate([events.current[at][first], events.pid[at]])[order],
        start_ns=np.concatenate([np.full(len(first), start, dtype=np.int64), time])[order],
        end_ns=np.concatenate([time[first], ends])[order],
        end=np.concatenate([state[first], how])[order],
    )
    return _with_quiet_cpus(events, whole, start, end, cpus)


def _with_quiet_cpus(events: Events, runs: Runs, start: int, end: int, cpus: int) -> Runs:
    """Add a run over the whole window for every CPU that never switched: with events, or of the first `cpus`."""
    known, index = np.unique(events.cpu, return_index=True)
    current = dict(zip(known.tolist(), events.current[index].tolist(), strict=True))
    quiet = sorted({*range(cpus), *current} - set(runs.cpu.tolist()))
    more = np.array(quiet, dtype=np.int64)
    size = len(quiet)
    whole = Runs(
        cpu=np.concatenate([runs.cpu, more]),
        pid=np.concatenate([runs.pid, np.array([current.get(cpu, IDLE) for cpu in quiet], dtype=np.int64)]),
        start_ns=np.concatenate([runs.start_ns, np.full(size, start)]),
        end_ns=np.concatenate([runs.end_ns, np.full(size, end)]),
        end=np.concatenate([runs.end, np.full(size, int(End.OPEN))]),
    )
    return whole.take(np.argsort(whole.cpu, kind="stable"))


def _ends(state: Ints) -> Ints:
    """Return `End` of a `prev_state`."""
    return np.select(
        [state == 0, state & columns.STATE_PREEMPTED != 0, state & columns.STATE_DEAD != 0],
        [int(End.YIELDED), int(End.PREEMPTED), int(End.DEAD)],
        int(End.BLOCKED),
    ).astype(np.int64)


class _Wakes:
    """Wake events of all tasks, found by task and time in one sorted key."""

    def __init__(self, events: Events, kinds: tuple[Kind, ...], start: int, end: int) -> None:
        at = events.where(*kinds)
        self._start, self._span = start, end - start + 2
        key = self._key(events.pid[at], events.time_ns[at])
        order = np.argsort(key, kind="stable")
        self._keys, self._times = key[order], events.time_ns[at][order]

    def __len__(self) -> int:
        return len(self._keys)

    def _key(self, pid: Ints, time: Ints) -> Ints:
        # Times are clipped into the window, so that a task's keys do not run into the next one's.
        return pid * self._span + np.clip(time - self._start + 1, 0, self._span - 1)

    def last(self, pid: Ints, after: Ints, until: Ints) -> Ints:
        """Return the time of each task's last event in (after, until], -1 where there is none."""
        if not len(self._keys):
            return np.full(len(pid), -1, dtype=np.int64)
        found = np.searchsorted(self._keys, self._key(pid, until), side="right") - 1
        good = (found >= 0) & (self._keys[found] > self._key(pid, after))
        return np.where(good, self._times[found], -1)


def _waits(events: Events, runs: Runs, start: int, end: int, skew: int) -> tuple[Waits, int]:
    """Find the wait before each run, and the wait after a task's last one if it goes on to the window's end."""
    runs = runs.take(np.lexsort((runs.start_ns, runs.pid)))
    gaps = _gaps(events, runs, start, end)
    waking = _Wakes(events, (Kind.WAKING,), start, end)
    wakeup = _Wakes(events, (Kind.WAKEUP, Kind.WAKEUP_NEW), start, end)
    traced = len(waking) + len(wakeup) > 0
    new = _Wakes(events, (Kind.WAKEUP_NEW, Kind.FORK), start, end)
    # A blocked task is woken once: of several stamps the last is its own, an earlier one came late from another CPU.
    woken = waking.last(gaps.pid, gaps.start_ns, gaps.end_ns)
    woken = np.where(woken >= 0, woken, wakeup.last(gaps.pid, gaps.start_ns, gaps.end_ns))
    born = new.last(gaps.pid, gaps.start_ns, gaps.end_ns) >= 0
    # The waker's stamp may lie just before the one of the switch that it waited for. Not before the run that ended
    # there: such a stamp is of the wakeup that led to the run.
    after = np.maximum(gaps.start_ns - skew, gaps.ran_from_ns)
    early = waking.last(gaps.pid, after, gaps.start_ns) >= 0
    late = np.minimum(gaps.end_ns + skew, end)
    soon = (waking.last(gaps.pid, gaps.end_ns, late) >= 0) | (new.last(gaps.pid, gaps.end_ns, late) >= 0)

    asleep = np.isin(gaps.before, (End.BLOCKED, End.DEAD))
    unseen = gaps.before == _UNSEEN
    begin = np.select(
        [
            ~asleep & ~unseen,  # it was put aside
            woken >= 0,
            asleep & early & ~soon & gaps.ran,
            unseen & ~soon & gaps.ran & traced,  # it was runnable before the window began
        ],
        [gaps.start_ns, woken, gaps.start_ns, gaps.start_ns],
        gaps.end_ns,
    )
    cause = np.select(
        [gaps.before == End.YIELDED, gaps.before == End.PREEMPTED, born, unseen & (woken < 0)],
        [int(Cause.YIELDED), int(Cause.PREEMPTED), int(Cause.NEW), int(Cause.OPEN)],
        int(Cause.WOKEN),
    ).astype(np.int64)
    instant = int(np.count_nonzero(gaps.ran & (asleep | unseen) & (begin == gaps.end_ns)))
    begin = np.maximum(begin, start)
    keep = gaps.end_ns > begin
    return Waits(gaps.pid[keep], begin[keep], gaps.end_ns[keep], cause[keep], gaps.ran[keep]), instant


_UNSEEN = -1
"""in `_Gaps.before`: nothing is known of the task before this gap"""


@dataclass(frozen=True)
class _Gaps:
    """The time between a task's runs, before its first and after its last."""

    pid: Ints
    start_ns: Ints
    end_ns: Ints
    before: Ints
    """`End` of the run before"""
    ran_from_ns: Ints
    """start of that run"""
    ran: Bools
    """a run follows"""


def _gaps(events: Events, runs: Runs, start: int, end: int) -> _Gaps:
    """Return the gaps of all tasks that ran or were woken; `runs` is ordered by task and time."""
    first = np.diff(runs.pid, prepend=-1) != 0
    final = np.diff(runs.pid, append=-1) != 0
    previous = np.maximum(np.arange(len(runs)) - 1, 0)
    # A gap of stamps that overlap by the clock's quantum has no length.
    since = np.where(first, start - 1, np.minimum(runs.end_ns[previous], runs.start_ns))
    before = np.where(first, _UNSEEN, runs.end[previous])
    tail = runs.take(final & (runs.end != End.OPEN) & (runs.end != End.DEAD))
    woken = np.unique(events.pid[events.where(Kind.WAKING, Kind.WAKEUP, Kind.WAKEUP_NEW)])
    never = np.setdiff1d(woken, np.append(runs.pid, IDLE))
    size, more = len(tail), len(never)
    gaps = _Gaps(
        pid=np.concatenate([runs.pid, tail.pid, never]),
        start_ns=np.concatenate([since, tail.end_ns, np.full(more, start - 1)]),
        end_ns=np.concatenate([runs.start_ns, np.full(size + more, end)]),
        before=np.concatenate([before, tail.end, np.full(more, _UNSEEN)]),
        ran_from_ns=np.concatenate([runs.start_ns[previous], tail.start_ns, np.full(more, start - 1)]),
        ran=np.concatenate([np.ones(len(runs), dtype=bool), np.zeros(size + more, dtype=bool)]),
    )
    order = np.lexsort((gaps.start_ns, gaps.pid))
    return replace(
        gaps,
        **{name: getattr(gaps, name)[order] for name in ("pid", "start_ns", "end_ns", "before", "ran_from_ns", "ran")},
    )
