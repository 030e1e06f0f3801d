"""What a trace shows of each task: when it lived, and how it ran and slept meanwhile."""

from dataclasses import dataclass

import numpy as np

from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.timeline import Cause, End, Runs, Timeline

LONG = 0.1
"""part of the trace: a task has too few longer runs or sleeps for a distribution, they are played when they happened"""

_EDGE = 0.01
"""part of the trace at its begin and its end that a life may lack and yet count as going through"""

_STRETCH = 0.1
"""part of its own length by which a life may be made longer for that: a brief one would do many times what it did"""


@dataclass(frozen=True)
class Life:
    """A task from its birth to its death, or a part of that: from or to a run or a sleep that is long."""

    pid: int
    runs_ns: Ints
    """CPU time between two sleeps, in order; the first may have begun before the trace, the last may go on after it"""
    sleeps_ns: Ints
    """one less than runs; none: it runs all the time"""
    begin_ns: int
    """since the trace's begin; 0: it went on before"""
    end_ns: int
    """the trace's length: it goes on"""

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end."""
        return self.begin_ns, self.end_ns


def of(line: Timeline, events: Events) -> list[Life]:
    """Return the lives of all tasks that ran, by pid and in order.

    Args:
        line: the timeline.
        events: what it was made of: births and deaths.
    """
    runs = line.tasks()
    runs = runs.take(np.lexsort((runs.start_ns, runs.pid)))
    waits = line.waits.take(line.waits.cause == Cause.WOKEN)
    born = set(events.pid[events.where(Kind.WAKEUP_NEW, Kind.FORK)].tolist())
    gone = set(events.pid[events.where(Kind.EXIT)].tolist())
    edges = np.flatnonzero(np.diff(runs.pid, prepend=-1, append=-1))
    found = []
    for first, beyond in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = runs.take(np.arange(first, beyond))
        pid = int(mine.pid[0])
        low, high = np.searchsorted(waits.pid, [pid, pid + 1])
        whole = _Task(mine, waits.start_ns[low:high], line.start_ns)
        dead = pid in gone or mine.end[-1] == End.DEAD
        found += whole.lives(pid, line.duration_ns, seen_born=pid in born, seen_dead=dead)
    return found


class _Task:
    """Runs and sleeps of one task, in order. Times are in ns since the trace's begin."""

    def __init__(self, runs: Runs, woken: Ints, origin: int) -> None:
        """Find them.

        Args:
            runs: of the task, in order.
            woken: when it was woken, in order.
            origin: the trace's begin.
        """
        spent = np.cumsum(runs.end_ns - runs.start_ns)
        blocked = np.flatnonzero(runs.end[:-1] == End.BLOCKED)
        asleep, again = runs.end_ns[blocked], runs.start_ns[blocked + 1]
        # A wakeup at the very instant of the run leaves no wait.
        wake = np.append(woken, np.iinfo(np.int64).max)[np.searchsorted(woken, asleep)]
        self.spent: Ints = np.diff(np.append(spent[blocked], spent[-1]), prepend=0)
        # CPUs' clocks are not that exactly one: a task may seem to run again before it slept.
        self.slept: Ints = np.maximum(np.minimum(wake, again) - asleep, 0)
        self.begins: Ints = np.append(runs.start_ns[:1], again) - origin
        self.ends: Ints = np.append(asleep, runs.end_ns[-1:]) - origin
        # Asleep or waiting: for how long it is not seen at most.
        self.unseen = int((runs.start_ns[1:] - runs.end_ns[:-1]).max(initial=0))

    def lives(self, pid: int, duration: int, *, seen_born: bool, seen_dead: bool) -> list[Life]:
        """Return its lives: cut at long sleeps, long runs by themselves.

        Args:
            pid: of the task.
            duration: of the trace.
            seen_born: the trace shows its birth; else it may have slept or waited before its first run.
            seen_dead: the trace shows its end.
        """
        long = LONG * duration
        # One that waits for most of the time is no long run; one of many that compute is, whatever its share.
        busy = (self.ends - self.begins > long) & (self.spent > long / 10)
        cuts = np.flatnonzero((self.slept > long) | busy[:-1] | busy[1:]) + 1
        firsts, beyonds = [0, *cuts.tolist()], [*cuts.tolist(), len(self.begins)]
        # A wait counts as unseen, too, but a long sleep does not: the task is taken to be away.
        unseen = min(self.unseen, int(long))
        found = []
        for first, beyond in zip(firsts, beyonds, strict=True):
            begin, end = int(self.begins[first]), int(self.ends[beyond - 1])
            edge = min(_EDGE * duration, _STRETCH * (end - begin))
            if first == 0 and (begin <= edge or (begin <= unseen and not seen_born)):
                begin = 0
            if beyond == len(self.ends) and (duration - end <= edge or (duration - end <= unseen and not seen_dead)):
                end = duration
            found.append(Life(pid, self.spent[first:beyond], self.slept[first : beyond - 1], begin, end))
        return found


def threads(lives: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return lives dealt out to as few threads as can live them, each life to the first thread that is free."""
    dealt: list[list[tuple[int, int]]] = []
    for life in sorted(lives):
        free = next((thread for thread in dealt if thread[-1][1] <= life[0]), None)
        if free is None:
            dealt.append([life])
        else:
            free.append(life)
    return dealt
