"""A load recorded in one guest and played in another: how faithful is that?"""

import json
import shlex
from pathlib import Path

import pytest

from heddle_lab import fidelity, kernels, machine, recording, rehearsal, tracefile, workload
from heddle_lab.job import Step, Trace
from tests.conftest import Boot, Record

pytestmark = pytest.mark.vm

EVENTS = [f"sched:sched_{name}" for name in ("switch", "waking", "wakeup_new", "process_exit")]
TALKS = [
    *("heddle-load", "schbench", "--load", "0.6", "--cpus-online", "4", "--message-threads", "1"),
    *("--request-insns", "200000", "--think-us", "300", "--requests", "300"),
]
HOGS = ["heddle-load", "spin", "--threads", "3", "--for-ms", "300"]
APART = 0.3
"""most that a rate of the replay may differ from the trace's: a run of the replay is no shorter than its own system
calls, which makes the shortest runs longer"""
BOTH = f"{shlex.join(HOGS)} >/dev/null & sleep 0.1; {shlex.join([*TALKS[:-1], '100'])} >/dev/null; wait"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        pytest.param(TALKS, {"heddle-load"}, id="threads that wake one another"),
        pytest.param(
            ["sh", "-c", BOTH], {"heddle-load", "sh", "sleep"}, id="tasks that compute, and others that come and go"
        ),
    ],
)
def test_a_recorded_load_is_replayed_faithfully(
    boot: Boot, tmp_path: Path, record_property: Record, argv: list[str], named: set[str]
) -> None:
    trace = Trace(events=EVENTS, buffer_kb=16384)
    results = boot([Step(name="load", argv=argv, trace=trace)], machine="smp-4").check()
    recorded = recording.read(results.trace_text, "the guest's trace")
    assert named <= {group.name for group in recorded.groups}
    file = tmp_path / "recorded.toml"
    file.write_text(recording.workload(recorded, "recorded", "a guest"))
    box = machine.load("smp-4")
    replayed = rehearsal.replay(recorded, workload.load(str(file)), box, kernels.find(boot.kernel))
    found = fidelity.compare(recorded, replayed)
    for row in found:
        record_property(f"replay on {boot.kernel}", ", ".join(row.row()))
    assert replayed.utilisation == pytest.approx(recorded.utilisation, rel=fidelity.RATES)
    assert replayed.switches == pytest.approx(recorded.switches, rel=APART, abs=fidelity.FEW * box.cpus)
    assert replayed.wakeups == pytest.approx(recorded.wakeups, rel=APART, abs=fidelity.FEW * box.cpus)


def test_a_load_grows_with_the_machine_and_with_its_parameters(boot: Boot, tmp_path: Path) -> None:
    """Three tasks that compute: of half of the load one is played, as two would be more than a half."""
    results = boot([Step(name="load", argv=HOGS, trace=Trace(events=EVENTS, buffer_kb=16384))], machine="smp-4").check()
    trace = tracefile.of_text(results.trace_text, "the guest's trace")
    recorded = recording.of_trace(trace, "trace", span=recording.Span(100_000_000, 100_000_000))
    file = tmp_path / "recorded.toml"
    file.write_text(recording.workload(recorded, "recorded", "a guest"))
    load = workload.load(str(file))
    played = {}
    for name, params in (("half", {"load": 0.5}), ("whole", {}), ("of two CPUs", {"trace_cpus": 2})):
        [step] = load.job_steps(load.parameters(dict(params)), machine.load("smp-4"), seed=1)
        replayed = boot([step], machine="smp-4", files=load.guest_files()).check()
        played[name] = json.loads(replayed.step("replay").stdout)["tasks"]
    assert played == {"half": 1, "whole": 3, "of two CPUs": 6}
