"""A load recorded in one guest and played in another: how faithful is that?"""

from pathlib import Path

import pytest

from heddle_lab import kernels, machine, recording
from heddle_lab.job import Step, Trace
from tests.conftest import Boot, Record

pytestmark = pytest.mark.vm

MACHINE = "smp-4"
# Its message thread and its workers have one name, so the model takes them for tasks that behave alike.
LOAD = [
    *("heddle-load", "schbench", "--load", "0.6", "--cpus-online", "4", "--message-threads", "1"),
    *("--request-insns", "200000", "--think-us", "300", "--requests", "1000"),
]
EVENTS = ["sched:sched_switch", "sched:sched_waking"]
APART = 0.3
"""most that a rate of the replay may differ from the trace's: a run of the replay is no shorter than its own system
calls, which makes the shortest runs longer"""


def test_a_recorded_load_is_replayed_faithfully(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    trace = Trace(events=EVENTS, buffer_kb=16384)
    results = boot([Step(name="load", argv=LOAD, trace=trace)], machine=MACHINE).check()
    recorded = recording.read(results.trace_text, "the guest's trace")
    file = tmp_path / "recorded.toml"
    file.write_text(recording.workload(recorded, "recorded", "a guest"))
    replayed = recording.replay(recorded, file, machine.load(MACHINE), kernels.find(boot.kernel))
    for row in recording.fidelity(recorded, replayed):
        record_property(f"replay on {boot.kernel}", ", ".join(row))
    assert replayed.utilisation == pytest.approx(recorded.utilisation, rel=APART)
    assert replayed.switches == pytest.approx(recorded.switches, rel=APART)
    assert replayed.wakeups == pytest.approx(recorded.wakeups, rel=APART)
