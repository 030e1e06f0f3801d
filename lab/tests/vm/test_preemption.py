"""A wakee that is behind leaves the running task on the CPU if that task will not run for much longer."""

import json
from pathlib import Path

import pytest

from heddle_lab.job import KillStep, Step
from tests.conftest import Boot, Record
from tests.vm.counting import PATIENT, counted, counters
from tests.vm.machines import slow
from tests.vm.shares import HEDDLE
from tests.vm.test_core import spin
from tests.vm.test_pitfalls import tasks

pytestmark = pytest.mark.vm

WAKE = ["heddle-load", "wake", "--from", "0", "--cpus", "1"]

WAKEUPS = 800
"""so many that the first ones, most of which find tasks of which little is known yet, do not decide"""


@pytest.mark.parametrize(("run_us", "cut_short"), [(500, False), (3_000, True)])
def test_a_brief_run_is_not_cut_short(
    boot: Boot, tmp_path: Path, record_property: Record, run_us: int, cut_short: bool
) -> None:
    """A sleeper that hardly runs finds a CPU shared by tasks of half a granularity, and by tasks of three."""
    # By groups the sleeper, alone in its own, would weigh more, and then it may.
    load = tasks("1", "100", load=0.9, run_us=run_us, period_us=10 * run_us, cpus="1", spread=1)
    sleeper = Step(name="sleeper", argv=[*WAKE, "--count", str(WAKEUPS), "--gap-us", "2000"])
    steps = [load, sleeper, Step(name="enough", action=KillStep(step="tasks"))]
    steps = counted("runs", ["--cgroup", "off", *PATIENT], steps, interval_s=1)
    results = boot(steps, machine=slow(tmp_path, "cores = 4"), sched=HEDDLE).check()
    got = counters(results, "runs")
    record_property(f"preemptions of runs of {run_us} us on {boot.kernel}", got["preempt"])
    assert got["preempt"] > WAKEUPS if cut_short else got["preempt"] < WAKEUPS / 4


def test_a_waker_about_to_sleep_is_not_preempted_by_its_wakee(
    boot: Boot, tmp_path: Path, record_property: Record
) -> None:
    """A writer of 16 bytes at a time fills its pipe before the reader gets the CPU that they share."""
    steps = [
        spin("hog", "--threads", "1", "--cpus", "1", for_ms=10_000, background=True),
        Step(name="stream", argv=["bash", "-c", "dd if=/dev/zero bs=16 count=100000 | dd of=/dev/null bs=16"]),
        Step(name="enough", action=KillStep(step="hog")),
    ]
    results = boot(counted("stream", [], steps), machine=slow(tmp_path, "cores = 2"), sched=HEDDLE).check()
    got = counters(results, "stream")
    record_property(f"preemptions and tasks queued beside a pipe on {boot.kernel}", (got["preempt"], got["queued"]))
    assert got["preempt"] < got["queued"] / 3


BATCHES = """
mkfifo /tmp/never; exec 3<>/tmp/never
while :; do
  for i in {1..200}; do read -t 0.0005 -u 3; done
  for ((i = 0; i < 350; i++)); do :; done
done
"""
"""on average of its life it sleeps after 0.6 ms, and computes for many slices all the same"""


def test_who_has_computed_for_a_slice_has_not_just_begun(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Alone on its CPU it gets slice after slice; a sleeper that wakes up after the end of one need not wait."""
    steps = [
        Step(name="batches", argv=["bash", "-c", BATCHES], cpus="1", background=True),
        Step(name="sleeper", argv=[*WAKE, "--count", "400", "--gap-us", "4000"]),
        Step(name="enough", action=KillStep(step="batches")),
    ]
    results = boot(steps, machine=slow(tmp_path, "cores = 2"), sched=HEDDLE).check()
    [cpu] = json.loads(results.step("sleeper").stdout)["cpus"]
    record_property(f"wakeups beside batches on {boot.kernel}", cpu["wakeup_latency_ns"])
    assert cpu["wakeup_latency_ns"]["mean"] < 200_000
