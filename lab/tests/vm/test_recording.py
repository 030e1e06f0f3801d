"""A load recorded in one guest and played in another: how faithful is that?"""

import shlex
from pathlib import Path

import pytest

from heddle_lab import fidelity, kernels, machine, recording
from heddle_lab.job import Step, Trace
from heddle_lab.recording import Load
from tests.conftest import Boot, Record
from tests.vm.machines import plain

pytestmark = [pytest.mark.vm, pytest.mark.every_kernel]

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
    replayed = replayed_on(boot.kernel, recorded, tmp_path, record_property)
    assert replayed.utilisation == pytest.approx(recorded.utilisation, rel=APART)
    assert replayed.switches == pytest.approx(recorded.switches, rel=APART)
    assert replayed.wakeups == pytest.approx(recorded.wakeups, rel=APART)


# Of 1.2 s some 15 ms are the load's: threads that are born, run and sleep, and die.
BURST = ["sh", "-c", f"sleep 0.6; {shlex.join([*LOAD[:-1], '100'])} >/dev/null; sleep 0.6"]
CLOSE = 0.1
"""most that the switches may differ"""


def test_tasks_that_live_for_a_moment_are_replayed_for_a_moment(
    boot: Boot, tmp_path: Path, record_property: Record
) -> None:
    # With the hardware's costs, which make tasks begin later, the replay has 10.2 % more switches.
    box = plain(tmp_path, 4)
    trace = Trace(events=EVENTS, buffer_kb=16384)
    results = boot([Step(name="load", argv=BURST, trace=trace)], machine=box).check()
    recorded = recording.read(results.trace_text, "the guest's trace")
    assert recorded.brief > 0.5
    replayed = replayed_on(boot.kernel, recorded, tmp_path, record_property, box)
    assert replayed.switches == pytest.approx(recorded.switches, rel=CLOSE)
    assert fidelity.faults(recorded, replayed) == []


def test_tasks_that_never_sleep_are_replayed(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    trace = Trace(events=EVENTS, buffer_kb=16384)
    hogs = ["heddle-load", "spin", "--threads", "3", "--for-ms", "300"]
    results = boot([Step(name="load", argv=hogs, trace=trace)], machine=MACHINE).check()
    recorded = recording.read(results.trace_text, "the guest's trace")
    assert recorded.utilisation > 0.7
    replayed = replayed_on(boot.kernel, recorded, tmp_path, record_property)
    # How often so few tasks switch is chance: they may meet on a CPU, or not.
    assert replayed.utilisation == pytest.approx(recorded.utilisation, abs=0.02)
    assert fidelity.faults(recorded, replayed) == []


def replayed_on(kernel: str, recorded: Load, tmp_path: Path, record_property: Record, box: str = MACHINE) -> Load:
    """Replay a load and record how faithful that is."""
    file = tmp_path / "recorded.toml"
    file.write_text(recording.workload(recorded, "recorded", "a guest"))
    replayed = fidelity.replay(recorded, file, machine.load(box), kernels.find(kernel))
    for row in fidelity.table(recorded, replayed):
        record_property(f"replay on {kernel}", ", ".join(row))
    return replayed
