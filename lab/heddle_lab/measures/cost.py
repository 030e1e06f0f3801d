"""Instructions that the kernel spends in its scheduler per switch, seen in place and under the real load.

Two stretches are timed, both with interrupts off, so that nothing else runs within them:

- `__schedule()` from entry to exit: the class's accounting, picking (a sched_ext scheduler's dispatch among it), the
  switch itself. Its tracepoints (`sched_entry_tp`, `sched_exit_tp`, from 6.15 on) are no events; `PROBES` makes
  them some (Documentation/trace/fprobetrace.rst).
- `try_to_wake_up()` from `sched_waking` to `sched_wakeup`: choosing a CPU, queueing, preempting. A wakeup that the
  woken task's CPU finishes itself shows no such stretch, nor does the switch to a new task; they count at the mean.

The first holds the recording of two events, the second of one; what an event costs is measured in the same boot (the
same pairs of switches with and without recording) and taken off. That leaves an error below one event's recording,
the same for every scheduler. The clock turns time into instructions at a CPU's full speed, so that on a machine with
an SMT factor stretches beside a busy sibling count for more than they are.
"""

from collections.abc import Sequence

import numpy as np

from heddle_lab.measures.events import Events, Ints, Kind

PROBES = ("t:heddle/schedule_entry sched_entry_tp", "t:heddle/schedule_exit sched_exit_tp")
"""definitions for tracefs's `dynamic_events`"""

EVENTS = ("heddle:schedule_entry", "heddle:schedule_exit")


def event_insns(silent_ns: int, recorded_ns: int, events: int, speed: int) -> float:
    """Return what recording one event costs, in instructions.

    Args:
        silent_ns: virtual time of a load on one CPU without recording.
        recorded_ns: that of the same load with it.
        events: how many were recorded.
        speed: of that CPU, instructions per 100 ns.
    """
    return (recorded_ns - silent_ns) / events * speed / 100 if events else 0.0


def insns_per_switch(events: Events, speed: Sequence[int], event: float) -> float | None:
    """Return the mean number of instructions in the scheduler per switch; none if there was no switch to see.

    Args:
        events: of the window.
        speed: instructions per 100 ns; CPU i takes entry i, the last repeats.
        event: instructions that recording one event costs.
    """
    calls = switches = wakeups = 0
    scheduling, waking = [], []
    for cpu in range(events.cpus):
        rate = speed[min(cpu, len(speed) - 1)] / 100
        mine = np.flatnonzero(events.cpu == cpu)
        kind = events.kind[mine]
        calls += int(np.count_nonzero(kind == Kind.SCHEDULE_ENTRY))
        switches += int(np.count_nonzero(kind == Kind.SWITCH))
        wakeups += int(np.count_nonzero(kind == Kind.WAKING))
        scheduling.append(_stretches(events, mine, Kind.SCHEDULE_ENTRY, Kind.SCHEDULE_EXIT) * rate)
        waking.append(_stretches(events, mine, Kind.WAKING, Kind.WAKEUP) * rate)
    seen, woken = np.concatenate(scheduling), np.concatenate(waking)
    if not switches or not len(seen):
        return None
    # A call without a switch holds one event less; its work is done for the sake of the switches all the same.
    per_call = max(float(seen.mean()) - 2 * event, 0.0)
    per_wakeup = max(float(woken.mean()) - event, 0.0) if len(woken) else 0.0
    return (per_call * calls + per_wakeup * wakeups) / switches


def _stretches(events: Events, rows: Ints, begin: Kind, end: Kind) -> Ints:
    """Return the lengths, in ns, between events of two kinds that follow one another on a CPU.

    Wakeups must be of the same task: what lies between two tasks' events is no stretch.
    """
    both = rows[np.isin(events.kind[rows], (begin, end))]
    kind, time = events.kind[both], events.time_ns[both]
    joined = (kind[:-1] == begin) & (kind[1:] == end)
    if begin is Kind.WAKING:
        joined &= events.pid[both][:-1] == events.pid[both][1:]
    lengths: Ints = np.diff(time)[joined]
    return lengths
