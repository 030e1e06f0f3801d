"""Missed idle CPUs against a machine whose states are known."""

from hypothesis import given
from hypothesis import strategies as st

from heddle_lab.measures import affinity, missed
from heddle_lab.measures.timeline import Cause
from tests.measures.reference import TICK_NS, Truth
from tests.measures.test_measures import built, machines


@given(machines, st.integers(1, 5))
def test_a_wakeup_misses_a_cpu_that_idles_while_the_task_waits(truth: Truth, grace: int) -> None:
    events = truth.events()
    line, where = built(truth), affinity.find(events)
    expected = 0
    for pid, start, end, cause in zip(
        *(column.tolist() for column in (line.waits.pid, line.waits.start_ns, line.waits.end_ns, line.waits.cause)),
        strict=True,
    ):
        if cause != Cause.WOKEN or end - start <= grace * TICK_NS:
            continue
        ticks = range(start // TICK_NS, start // TICK_NS + grace)
        cpus = [cpu for cpu in range(truth.cpus) if where.at(pid, start) >> cpu & 1]
        expected += any(all(truth.running[tick][cpu] == 0 for tick in ticks) for cpu in cpus)
    found = missed.missed_idle(line, where, grace * TICK_NS)
    assert found.missed == expected
    assert 0 <= found.fraction <= 1
