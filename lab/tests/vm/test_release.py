"""CPUs that another class takes: tasks that ran or wait there go on elsewhere."""

import pytest

from heddle_lab.job import Step
from tests.conftest import Boot
from tests.vm.test_core import HEDDLE, MS, cpu_ns, sleep, spin, wait

pytestmark = [pytest.mark.vm, pytest.mark.every_kernel]

RT_MS = 200
LOAD_MS = 4 * RT_MS + 400


def real_time(cpu: int, for_ms: int = RT_MS) -> Step:
    """A real-time task that sleeps on a CPU until its turn, then computes there."""
    script = "sleep $0; end=$((${EPOCHREALTIME/./} + $1)); while [ ${EPOCHREALTIME/./} -lt $end ]; do :; done"
    argv = ["bash", "-c", script, str((300 + cpu * RT_MS) / 1000), str(for_ms * 1000)]
    return Step(name=f"rt {cpu}", argv=argv, cpus=str(cpu), policy="fifo", background=True)


@pytest.mark.parametrize("runq", ["percpu", "global"])
def test_who_is_preempted_by_a_real_time_task_goes_to_an_idle_cpu(boot: Boot, runq: str) -> None:
    """Three hogs on four CPUs, each of which a real-time hog takes for a while: there is always one left for each."""
    in_turn = [real_time(cpu) for cpu in range(4)]
    hogs = spin("hogs", "--threads", "3", for_ms=LOAD_MS)
    steps = [*in_turn, sleep(50), hogs, *(wait(step.name) for step in in_turn)]
    results = boot(steps, sched=f"heddle={HEDDLE} --runq {runq}").check()
    for got in cpu_ns(results, "hogs"):
        assert got > 0.95 * LOAD_MS * MS


def test_who_waits_behind_a_real_time_task_is_found_by_the_cpu_that_he_may_use(boot: Boot) -> None:
    """One hog may run on CPU 0, which a real-time hog takes, and on CPU 1, beside another hog; CPUs 2 and 3 idle.

    Those two go idle again and again. They must not hide from CPU 1 the hog that waits on CPU 0.
    """
    coming = ["bash", "-c", "while :; do sleep 0.001; done"]
    visitors = [Step(name=f"visitor {cpu}", argv=coming, cpus=str(cpu), background=True) for cpu in (2, 3)]
    other = spin("other", "--threads", "1", for_ms=LOAD_MS, cpus="1", background=True)
    hog = spin("hog", "--threads", "1", for_ms=LOAD_MS, cpus="0-1")
    steps = [real_time(0, 3 * RT_MS), *visitors, sleep(50), other, hog]
    results = boot(steps, sched=f"heddle={HEDDLE}").check()
    [got] = cpu_ns(results, "hog")
    alone, shared = LOAD_MS - 3 * RT_MS, 3 * RT_MS
    assert got > 0.9 * (alone + shared / 2) * MS
