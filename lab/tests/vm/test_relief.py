"""Nobody waits for ever, seen on a real kernel: sched_ext would throw the scheduler out for it."""

from pathlib import Path

import pytest

from heddle_lab.job import KillStep, Read, Step
from tests.conftest import Boot
from tests.vm.counting import counted, counters
from tests.vm.shares import slow
from tests.vm.test_core import HEDDLE, MS, STATE, cpu_ns, spin

FOR_MS = 14_000
"""well beyond the 10 s after which sched_ext throws a scheduler out"""

CROWDS = {"hogs": ["--threads", "40"], "heavy hogs": ["--threads", "5", "--nice", "-20"]}
"""by runs of a tick, 4 ms, a SCHED_IDLE task beside them is entitled to one in 55 s, and in ten minutes"""

LOWLY = ["--threads", "4", "--policy", "idle,idle,other,batch", "--nice", "0,0,19,19"]


@pytest.mark.parametrize("cgroup", ["flat", "off"])
@pytest.mark.parametrize("crowd", CROWDS)
def test_the_lightest_run_in_a_crowd_on_one_cpu(boot: Boot, crowd: str, cgroup: str, tmp_path: Path) -> None:
    """Each gets a slice every few seconds, the crowd all the rest."""
    load = [
        spin("crowd", *CROWDS[crowd], "--cpus", "0", for_ms=10 * FOR_MS, background=True),
        spin("lowly", *LOWLY, "--cpus", "0", for_ms=FOR_MS),
        Step(name="state", action=Read(path=STATE)),
        Step(name="kill", action=KillStep(step="crowd")),
    ]
    steps = counted("crowd", ["--cgroup", cgroup], load, interval_s=1)
    results = boot(steps, machine=slow(tmp_path, "cores = 2"), sched=HEDDLE).check()
    assert results.step("state").stdout.strip() == "enabled"
    got = cpu_ns(results, "lowly")
    assert min(got) > 3 * MS
    assert sum(got) < 0.01 * FOR_MS * MS
    assert counters(results, "crowd")["relieved"] >= 4
