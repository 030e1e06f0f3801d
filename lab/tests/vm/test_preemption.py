"""Whom a wakee leaves on the CPU, though it is behind: one that will not run for much longer."""

from pathlib import Path

import pytest

from heddle_lab.job import KillStep, Step
from tests.conftest import Boot, Record
from tests.vm.counting import counted, counters
from tests.vm.shares import HEDDLE, slow
from tests.vm.test_core import spin
from tests.vm.test_pitfalls import tasks

pytestmark = pytest.mark.vm

WAKEUPS = 800
"""so many that the first ones, most of which find tasks of which little is known yet, do not decide"""


@pytest.mark.parametrize(("run_us", "cut_short"), [(500, False), (3_000, True)])
def test_a_brief_run_is_not_cut_short(
    boot: Boot, tmp_path: Path, record_property: Record, run_us: int, cut_short: bool
) -> None:
    """A sleeper that hardly runs finds a CPU shared by tasks of 0.5 ms, and one shared by tasks of 3 ms."""
    # By groups the sleeper, alone in its own, would weigh more, and then it may.
    load = tasks("1", "100", load=0.9, run_us=run_us, period_us=10 * run_us, cpus="1", spread=1)
    argv = ["heddle-load", "wake", "--from", "0", "--cpus", "1", "--count", str(WAKEUPS), "--gap-us", "2000"]
    steps = [load, Step(name="sleeper", argv=argv), Step(name="enough", action=KillStep(step="tasks"))]
    steps = counted("runs", ["--cgroup", "off"], steps, interval_s=1)
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
