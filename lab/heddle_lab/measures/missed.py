"""Missed idle CPUs: wakeups that had to wait although a CPU idled on which the task may run.

Seen from the traces, not from what a scheduler believes. Like `idle`, it allows for the price of a wakeup: the task
must have waited longer than a grace period, in all of which one and the same CPU was idle.
"""

from dataclasses import dataclass

import numpy as np

from heddle_lab.measures.affinity import Affinity
from heddle_lab.measures.events import Bools, Ints
from heddle_lab.measures.idle import GRACE_NS
from heddle_lab.measures.timeline import IDLE, Cause, Timeline


@dataclass(frozen=True)
class MissedIdle:
    """Counts of wakeups over the window."""

    wakeups: int
    missed: int

    @property
    def fraction(self) -> float:
        """Missed ones as a part of all wakeups, 0..1."""
        return self.missed / self.wakeups if self.wakeups else 0.0


def missed_idle(timeline: Timeline, affinity: Affinity, grace_ns: int = GRACE_NS) -> MissedIdle:
    """Count the wakeups that missed an idle CPU.

    Args:
        timeline: the window.
        affinity: where tasks may run.
        grace_ns: how long the task must have waited while the CPU idled.
    """
    woken = timeline.waits.take(timeline.waits.cause == Cause.WOKEN)
    waited = woken.take(woken.end_ns - woken.start_ns > grace_ns)
    masks = [affinity.at(pid, at) for pid, at in zip(waited.pid.tolist(), waited.start_ns.tolist(), strict=True)]
    runs = timeline.runs.take(timeline.runs.pid == IDLE)
    missed = np.zeros(len(waited), dtype=bool)
    for cpu in np.unique(runs.cpu).tolist():
        rows = runs.cpu == cpu
        idle = _covers(runs.start_ns[rows], runs.end_ns[rows], waited.start_ns, waited.start_ns + grace_ns)
        missed |= idle & np.array([mask >> cpu & 1 for mask in masks], dtype=bool)
    return MissedIdle(len(woken) + timeline.instant, int(np.count_nonzero(missed)))


def _covers(starts: Ints, ends: Ints, begin: Ints, end: Ints) -> Bools:
    """Return for each span whether one of some intervals, in order, holds throughout."""
    at = np.searchsorted(starts, begin, side="right") - 1
    inside: Bools = (at >= 0) & (ends[at] >= end)
    return inside
