"""What scx_heddle promises, seen on a real kernel. Virtual time is exact, so these tests state numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from heddle_lab import machine, workload
from heddle_lab.job import (
    KillScheduler,
    KillStep,
    Read,
    SchedulerCommand,
    SchedulerStart,
    SchedulerStop,
    Sleep,
    Step,
    Trace,
    WaitStep,
    Write,
)
from heddle_lab.results import Results
from tests.conftest import Boot, Record
from tests.vm.loads import stress_ng
from tests.vm.machines import slow

HEDDLE = "scx_heddle"
PROGRAM = "/usr/local/bin/scx_heddle"
MS = 1_000_000
STATE = "/sys/kernel/sched_ext/state"

NICE_0, NICE_5 = 1024, 335  # sched(7): the kernel's weights


def spin(name: str, *arguments: str, for_ms: int, **fields: Any) -> Step:
    """CPU hogs that report what they got."""
    argv = ["heddle-load", "spin", *arguments, "--for-ms", str(for_ms)]
    return Step(name=name, argv=argv, **fields)


def read(name: str, path: str) -> Step:
    return Step(name=name, action=Read(path=path))


def write(path: str, value: str) -> Step:
    return Step(name=f"{path}={value}", action=Write(path=path, value=value))


def wait(step: str) -> Step:
    return Step(name=f"wait for {step}", action=WaitStep(step=step))


def sleep(ms: int, name: str = "sleep") -> Step:
    return Step(name=name, action=Sleep(ns=ms * MS))


def cpu_ns(results: Results, step: str) -> list[int]:
    """CPU time of each thread of a spin step, ns."""
    report = json.loads(results.step(step).stdout)
    return [thread["cpu_ns"] for thread in report["threads"]]


VERIFIER_LIMIT = 1_000_000
"""instructions of one program, BPF_COMPLEXITY_LIMIT_INSNS"""


def verified(results: Results) -> dict[str, int]:
    """Return what the verifier went through for each callback; scx_heddle ran with -v."""
    said = results.of("scheduler")[-1]["stderr"]
    return {name: int(insns) for name, insns in re.findall(r"verifier: heddle_(\w+): (\d+) instructions", said)}


@pytest.mark.every_kernel
def test_loads_far_below_the_limits_of_the_verifier(boot: Boot, record_property: Record) -> None:
    """What the verifier went through is recorded: pytest prints it in its summary."""
    results = boot([Step(name="stop", action=SchedulerStop())], sched=f"verbose={HEDDLE} -v").check()
    costs = verified(results)
    record_property(f"instructions verified on {boot.kernel}", costs)
    assert {"init", "select_cpu", "enqueue", "dispatch", "running", "stopping"} <= set(costs)
    assert 0 < max(costs.values()) < VERIFIER_LIMIT / 10


def test_two_nice_levels_share_a_cpu_by_weight(boot: Boot) -> None:
    hogs = spin("hogs", "--threads", "2", "--nice", "0,5", "--cpus", "1", for_ms=2000)
    normal, nice = cpu_ns(boot([hogs], sched=HEDDLE).check(), "hogs")
    assert normal / nice == pytest.approx(NICE_0 / NICE_5, rel=0.02)
    assert normal + nice == pytest.approx(2000 * MS, rel=0.02)


def test_three_hogs_get_two_thirds_of_two_cpus_each(boot: Boot) -> None:
    hogs = spin("hogs", "--threads", "3", "--cpus", "1-2", for_ms=2000)
    for got in cpu_ns(boot([hogs], sched=HEDDLE).check(), "hogs"):
        assert got == pytest.approx(2000 * MS * 2 / 3, rel=0.03)


@pytest.mark.every_kernel
def test_pinned_tasks_never_run_elsewhere(boot: Boot) -> None:
    """A hog and a sleeper pinned to each CPU, beside a load that is free to move."""
    hog = "echo -n pin{cpu}h > /proc/self/comm; while :; do :; done"
    sleeper = (
        "echo -n pin{cpu}s > /proc/self/comm; mkfifo /tmp/pin{cpu}; exec 3<>/tmp/pin{cpu};"
        " while :; do read -t 0.001 -u 3; done"
    )
    pinned = [
        Step(name=f"{kind}{cpu}", argv=["bash", "-c", text.format(cpu=cpu)], cpus=str(cpu), background=True)
        for cpu in range(4)
        for kind, text in (("hog", hog), ("sleeper", sleeper))
    ]
    free = Step(
        name="free",
        argv=["hackbench", "-g", "1", "-f", "4", "-l", "500"],
        trace=Trace(events=["sched:sched_switch"], filter='next_comm ~ "pin*"', buffer_kb=16384),
    )
    results = boot([*pinned, sleep(20), free], sched=HEDDLE).check()
    switches = results.trace("sched_switch")
    seen = {hit.fields["next_comm"] for hit in switches}
    assert seen == {f"pin{cpu}{kind}" for cpu in range(4) for kind in "hs"}
    assert all(hit.fields["next_comm"][3] == str(hit.cpu) for hit in switches)


def test_a_waker_of_a_hundred_keeps_none_for_itself(boot: Boot) -> None:
    """hackbench's first process wakes all others at once: put past the queue, they would run one by one."""
    crowd = ["hackbench", "-g", "4", "-f", "20", "-l", "10"]
    steps = [
        Step(name="heddle", argv=crowd),
        Step(name="stop", action=SchedulerStop()),
        Step(name="eevdf", argv=crowd),
    ]
    results = boot(steps, machine="smp-8-2llc", sched=HEDDLE).check()
    assert results.step("heddle").elapsed_ns < 1.25 * results.step("eevdf").elapsed_ns


@pytest.mark.every_kernel
def test_sleepers_do_not_wait_for_hogs(boot: Boot, record_property: Record) -> None:
    """Three hogs for two CPUs, whatever the CPUs owe each other: the p99 of wakeups shows no wait for a hog."""
    load = workload.load("cyclictest")
    params = load.parameters({"load": 1.5, "timers": 20.0, "interval_us": 10_000, "for_ms": 1000})
    box = machine.load("smp-4")
    p99 = {}
    for sched in ("eevdf", HEDDLE):
        results = boot(load.job_steps(params, box, seed=1), machine=box.name, sched=sched).check()
        p99[sched] = load.measure(results, params, box)["wakeup_latency_ns.p99"]
    record_property(f"p99 of wakeups beside hogs on {boot.kernel}, ns", p99)
    assert p99[HEDDLE] < 0.2 * p99["eevdf"]


def hotplug_storm(times: int) -> Step:
    """Take CPUs 2 and 3 off and bring them back, as fast as the kernel does it."""
    both = "/sys/devices/system/cpu/cpu[23]/online"
    storm = f"for i in $(seq {times}); do for o in 0 1; do for f in {both}; do echo $o > $f || exit; done; done; done"
    return Step(name="storm", argv=["bash", "-c", storm])


@pytest.mark.every_kernel
def test_cpus_come_and_go_under_load(boot: Boot) -> None:
    online = "/sys/devices/system/cpu/cpu{}/online"
    results = boot(
        [
            Step(name="load", argv=["hackbench", "-g", "2", "-f", "4", "-l", "4000"], background=True),
            spin("pinned", "--threads", "2", "--cpus", "2", for_ms=200, background=True),
            sleep(20, "before"),
            *(write(online.format(cpu), "0") for cpu in (2, 3)),
            sleep(40, "half of the machine"),
            *(write(online.format(cpu), "1") for cpu in (3, 2)),
            sleep(20, "after"),
            hotplug_storm(10),
            wait("pinned"),
            wait("load"),
            read("state", STATE),
        ],
        sched=HEDDLE,
    ).check()
    assert results.step("state").stdout.strip() == "enabled"
    assert not results.of("error")
    assert sum(cpu_ns(results, "pinned")) > 0
    stall = 5_000 * MS  # half of what the watchdog tolerates; the load needs a fifth of it
    assert results.step("load").elapsed_ns < stall


STRESSORS = {
    "forks": "clone daemon exec exit-group fork forkheavy kill mmapfork session spawn vfork vforkmany wait zombie",
    "threads": "fault flipflop futex loadavg mtx mutex pthread workload",
    "timers": "hrtimers min-nanosleep nanosleep poll sleep",
    "messages": "affinity dnotify eventfd fifo mq msg netlink-proc netlink-task sem sem-sysv switch tee yield",
    "policies": "cpu-sched cyclic nice prio-inv race-sched resched schedmix schedpolicy softlockup",
}
"""stress-ng's scheduler class in batches of a virtual second: all at once, those that start last, behind others of
real-time policies and thousands of threads, would hardly run"""


def stress(batch: str) -> Step:
    user = 1000 if batch == "forks" else 0  # exec and spawn refuse to run as root
    return stress_ng(batch, STRESSORS[batch], seconds=1, uid=user)


def test_survives_the_scheduler_class_of_stressors(boot: Boot, tmp_path: Path) -> None:
    results = boot(
        [
            Step(name="class", argv=["stress-ng", "--class", "scheduler?"]),
            *map(stress, STRESSORS),
            read("state", STATE),
        ],
        machine=slow(tmp_path, "cores = 4", speed=25),
        sched=HEDDLE,
        layers=["stress"],
    ).check()
    members = results.step("class").stdout.partition(":")[2].split()
    assert sorted(members) == sorted(" ".join(STRESSORS.values()).split())
    for batch in STRESSORS:
        assert "skipped: 0\n" in results.step(batch).stdout
    assert results.step("state").stdout.strip() == "enabled"


STALL = SchedulerCommand(name="impatient", argv=["env", "SCX_TIMEOUT_MS=100", PROGRAM])
"""its watchdog calls a task stalled that waits for 0.1 s, as the last of 80 hogs on one CPU does"""


@pytest.mark.every_kernel
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL", "scheduler error"])
def test_the_kernel_takes_over_with_all_tasks_alive(boot: Boot, end: str) -> None:
    hogs = spin("hogs", "--threads", "6", for_ms=400, background=True)
    ends = {
        "SIGTERM": [Step(name="end", action=SchedulerStop())],
        "SIGKILL": [Step(name="end", action=KillScheduler())],
        "scheduler error": [
            Step(name="stop", action=SchedulerStop()),
            Step(name="start", action=SchedulerStart(scheduler=STALL)),
            spin("crowd", "--threads", "80", "--cpus", "3", for_ms=400, expect_exit=None),
        ],
    }
    results = boot([hogs, sleep(50), *ends[end], read("state", STATE), wait("hogs")], sched=HEDDLE)
    assert results.failure is None
    assert results.step("state").stdout.strip() == "disabled"
    assert results.step("hogs").exit == 0
    got = cpu_ns(results, "hogs")
    assert len(got) == 6
    assert min(got) > 100 * MS
    last = results.of("scheduler")[-1]
    if end == "scheduler error":
        assert (last["state"], last["exit"]) == ("died", 1)
        assert "stall" in last["stderr"]
    else:
        assert last["state"] == "detached"
        assert last["exit"] == (0 if end == "SIGTERM" else None)


def test_a_second_instance_is_refused(boot: Boot) -> None:
    second = Step(name="second", argv=[PROGRAM], expect_exit=1)
    refused = boot([second, read("state", STATE)], sched=HEDDLE).check()
    lines = refused.step("second").stderr.strip().splitlines()
    assert len(lines) == 1
    assert "heddle" in lines[0]
    assert refused.step("state").stdout.strip() == "enabled"


def test_stopping_a_background_step_leaves_nothing_behind(boot: Boot) -> None:
    results = boot(
        [
            spin("hogs", "--threads", "8", for_ms=60_000, background=True),
            sleep(10),
            Step(name="kill", action=KillStep(step="hogs")),
            Step(name="left", argv=["pgrep", "-c", "heddle-load"], expect_exit=1),
        ],
        sched=HEDDLE,
    ).check()
    assert results.step("left").stdout.strip() == "0"
