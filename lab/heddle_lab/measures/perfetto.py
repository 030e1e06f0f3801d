"""The events as a file for ui.perfetto.dev, which draws CPUs, threads with their states, and each wakeup's waker.

Format: protos/perfetto/trace/ftrace of perfetto.dev; a bundle holds the events of one CPU.
"""

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import FtraceEventBundle, Trace

from heddle_lab.measures.events import Events, Ints, Kind

_NICE_0 = 120
"""priority of a task of which nothing was said yet"""

_WAKEUPS = {
    int(Kind.WAKING): "sched_waking",
    int(Kind.WAKEUP): "sched_wakeup",
    int(Kind.WAKEUP_NEW): "sched_wakeup_new",
}

SUFFIX = ".perfetto-trace"
"""how the UI expects the file to be called"""


def encode(events: Events, kernel: str = "") -> bytes:
    """Return the file's content.

    Args:
        events: what happened; switches and wakeups are kept.
        kernel: its release, which tells the UI how to read the states of tasks.
    """
    trace = Trace()
    system = trace.packet.add().system_info
    system.utsname.sysname = "Linux"
    system.utsname.machine = "x86_64"
    system.utsname.release = kernel
    system.num_cpus = events.cpus
    for cpu in range(events.cpus):
        rows = np.flatnonzero((events.cpu == cpu) & np.isin(events.kind, [Kind.SWITCH, *_WAKEUPS]))
        if len(rows):
            _fill(trace.packet.add().ftrace_events, events, rows, cpu)
    data: bytes = trace.SerializeToString()
    return data


def _fill(bundle: FtraceEventBundle, events: Events, rows: Ints, cpu: int) -> None:
    bundle.cpu = cpu
    prios: dict[int, int] = {}
    columns = (events.time_ns, events.kind, events.current, events.pid, events.value, events.prio)
    for time, kind, current, pid, value, prio in zip(*(column[rows].tolist() for column in columns), strict=True):
        event = bundle.event.add(timestamp=time, pid=current)
        if kind == Kind.SWITCH:
            switch = event.sched_switch
            switch.prev_comm, switch.prev_pid = _comm(events, current, cpu), current
            switch.prev_prio, switch.prev_state = prios.get(current, _NICE_0), value
            switch.next_comm, switch.next_pid, switch.next_prio = _comm(events, pid, cpu), pid, prio
            prios[pid] = prio
        else:
            woken = getattr(event, _WAKEUPS[kind])
            woken.comm, woken.pid, woken.prio, woken.target_cpu = _comm(events, pid, cpu), pid, prio, value


def _comm(events: Events, pid: int, cpu: int) -> str:
    return events.comms.get(pid, "") if pid else f"swapper/{cpu}"
