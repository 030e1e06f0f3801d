"""A task keeps its CPU where no task waits: no tick ends its run, and no brief kernel thread of that CPU moves it."""

import numpy as np
import pytest

from heddle_lab import tracing
from heddle_lab.job import Sleep, Step, Trace, WaitStep, Write
from heddle_lab.measures import affinity
from tests.conftest import Boot, Record
from tests.vm.counting import MS, counted, counters
from tests.vm.shares import HEDDLE

pytestmark = [pytest.mark.vm, pytest.mark.every_kernel]

CPUS, TICK_MS = 4, 4
LOAD = "heddle-load"


def two_hogs(for_ms: int, *, background: bool = False) -> Step:
    argv = [LOAD, "spin", "--threads", "2", "--for-ms", str(for_ms)]
    return Step(name="hogs", argv=argv, background=background)


def test_a_tick_grants_the_next_slice_by_itself(boot: Boot, record_property: Record) -> None:
    for_ms = 1_000
    results = boot(counted("alone", ["--schedstat"], [two_hogs(for_ms)]), sched=HEDDLE).check()
    got = counters(results, "alone")
    record_property(f"slices granted, calls of the scheduler on {boot.kernel}", (got["kept"], got["sched_count"]))
    assert got["kept"] > 0.9 * 2 * for_ms / TICK_MS
    assert got["sched_count"] < got["kept"]


REFRESHES = 40


def test_a_kernel_thread_of_its_cpu_drives_nobody_away(boot: Boot, record_property: Record) -> None:
    """Two CPUs idle. To refresh the statistics of memory, each CPU has a worker of its own do something.

    Of a worker that is new nobody knows yet that it is brief.
    """
    refresh = f"for i in $(seq {REFRESHES}); do cat /proc/sys/vm/stat_refresh; sleep 0.005; done"
    probe = Write(path="/sys/kernel/tracing/dynamic_events", value=affinity.probe(CPUS))
    trace = Trace(events=list(tracing.EVENTS), format="raw", buffer_kb=4096)
    steps = [
        Step(name="probe", action=probe),
        two_hogs(400, background=True),
        Step(name="all run", action=Sleep(ns=20 * MS)),
        Step(name="refresh", argv=["bash", "-c", refresh], trace=trace),
        Step(name="wait", action=WaitStep(step="hogs")),
    ]
    results = boot(steps, machine=f"smp-{CPUS}", sched=HEDDLE).check()
    line = tracing.line_of(tracing.events_of(results, "refresh"), results)
    runs = line.runs.take(np.array([line.comms.get(int(pid)) == LOAD for pid in line.runs.pid]))
    order = np.lexsort((runs.start_ns, runs.pid))
    same = np.diff(runs.pid[order]) == 0
    moves = int(np.count_nonzero(same & (np.diff(runs.cpu[order]) != 0)))
    record_property(f"moves of hogs on {boot.kernel}, of times aside", f"{moves} of {np.count_nonzero(same)}")
    assert np.count_nonzero(same) > REFRESHES / 2
    assert moves < REFRESHES / 8
