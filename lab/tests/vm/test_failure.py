"""What goes wrong on servers: each time scx_heddle goes on scheduling, or the kernel takes over and says why.

On a machine whose virtual seconds are cheap. `make stress` does more of each.
"""

from pathlib import Path
from typing import Any

import pytest

from heddle_lab.job import CgroupSet, KillStep, SchedulerCommand, SchedulerStart, SchedulerStop, Step, Trace, WaitStep
from heddle_lab.results import Results
from tests.conftest import Boot
from tests.vm.counting import STRESS
from tests.vm.loads import stress_ng
from tests.vm.machines import slow
from tests.vm.test_core import HEDDLE, MS, PROGRAM, STATE, cpu_ns, read, sleep, spin, wait, write

RESTARTS = 1000 if STRESS else 3
GROUPS = 10_000 if STRESS else 100
THREADS = 50_000 if STRESS else 200
MEMORY_MIB = 6144 if STRESS else 1024
MIXED_S = 600 if STRESS else 10
WALL_TIMEOUT_S = 3600 if STRESS else 600

SPEED = 25
"""percent of the usual: a virtual second of 4 busy CPUs costs 1 instead of 4 billion instructions"""

SECOND_NS = 1000 * MS
HOUR_NS = 3600 * SECOND_NS
ONLINE = "/sys/devices/system/cpu/cpu{}/online"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    return slow(tmp_path, "cores = 4", SPEED)


def shell(name: str, script: str, **fields: Any) -> Step:
    return Step(name=name, argv=["bash", "-c", script], **fields)


def assert_scheduling(results: Results) -> None:
    """The scheduler of the job was attached at the end, and the kernel had nothing to say."""
    results.check()
    assert results.step("state").stdout.strip() == "enabled"
    assert results.of("scheduler")[-1]["state"] == "detached"
    assert not results.of("error")


@pytest.mark.every_kernel
def test_all_cpus_but_one_go_and_come_back(boot: Boot) -> None:
    """As for suspend (suspend_disable_secondary_cpus() in kernel/cpu.c), twice, under load.

    Before that, one comes that the loader did not know: it loads again, without what it has given up of root's rights.
    """
    cpus = (1, 2, 3)
    cycle = [
        *((f"{ONLINE.format(cpu)}", "0") for cpu in cpus),
        *((f"{ONLINE.format(cpu)}", "1") for cpu in cpus),
    ]
    steps = [
        Step(name="stop", action=SchedulerStop()),
        write(ONLINE.format(3), "0"),
        Step(name="start with three", action=SchedulerStart()),
        write(ONLINE.format(3), "1"),
        sleep(1000, "loads again"),
        spin("load", "--threads", "6", for_ms=500, background=True),
    ]
    for turn in range(2):
        for path, value in cycle:
            step = write(path, value)
            steps.append(step.model_copy(update={"name": f"{step.name} in turn {turn}"}))
            if (path, value) in (cycle[2], cycle[-1]):
                steps.append(sleep(80, f"{value} in turn {turn}"))
    results = boot([*steps, wait("load"), read("state", STATE)], sched=HEDDLE)
    assert_scheduling(results)
    assert min(cpu_ns(results, "load")) > 60 * MS
    assert "the kernel asked for a restart" in results.of("scheduler")[-1]["stderr"]


def test_a_loader_that_is_stopped_for_a_minute_is_not_missed(boot: Boot, machine: str) -> None:
    """The policy is in the kernel: a loader under SIGSTOP answers nobody, and nothing else changes."""
    loader = "kill -{} $(pgrep -x scx_heddle)"
    results = boot(
        [
            shell("stop", loader.format("STOP")),
            sleep(30_000, "half a minute"),
            spin("meanwhile", "--threads", "6", for_ms=100),
            sleep(30_000, "another half"),
            read("state", STATE),
            shell("go on", loader.format("CONT")),
            Step(name="answers", argv=["timeout", "--preserve-status", "1", PROGRAM, "--monitor", "0.2"]),
        ],
        machine=machine,
        sched=HEDDLE,
        timeout_ns=120 * SECOND_NS,
    )
    assert_scheduling(results)
    assert min(cpu_ns(results, "meanwhile")) > 30 * MS
    assert results.step("answers").stdout


BOMB = "b() { b | b & }; b; sleep 60"
"""processes that start two of themselves each"""

RACE = """
cd /sys/fs/cgroup
for i in $(seq 20); do
  mkdir race$i; (echo $BASHPID > race$i/cgroup.procs; exec sleep 0.00$((i % 10))) &
  (echo $BASHPID > race$i/cgroup.procs; exit) & wait
  rmdir race$i || exit
done
"""
"""tasks that end in a group that is removed at once"""


def test_memory_and_processes_run_out(boot: Boot, tmp_path: Path) -> None:
    """The OOM killer ends what eats the memory; a fork bomb stays inside its pids.max; groups go with their tasks."""
    machine = slow(tmp_path, "cores = 4", SPEED, memory_mib=512)
    results = boot(
        [
            spin("load", "--threads", "4", for_ms=1500, background=True),
            shell("eater", "exec tail /dev/zero", expect_exit=None),
            Step(name="limit", action=CgroupSet(cgroup="bomb", file="pids.max", value="100")),
            shell("bomb", BOMB, cgroup="bomb", background=True, expect_exit=None),
            sleep(300, "explosion"),
            read("forks refused", "/sys/fs/cgroup/bomb/pids.events"),
            Step(name="defuse", action=CgroupSet(cgroup="bomb", file="cgroup.kill", value="1")),
            Step(name="bomb's end", action=WaitStep(step="bomb")),
            shell("race", RACE),
            wait("load"),
            read("state", STATE),
        ],
        machine=machine,
        sched=HEDDLE,
    )
    assert_scheduling(results)
    assert results.step("eater").signal == 9
    assert int(results.step("forks refused").stdout.split()[1]) > 0
    assert min(cpu_ns(results, "load")) > 100 * MS


ROOM = {"kernel/pid_max": 4_000_000, "kernel/threads-max": 200_000, "vm/max_map_count": 400_000}
"""What a machine of this size leaves to its administrator to allow, of /proc/sys: a thread takes two maps."""

CROWD = f"""
heddle-load spin --threads {THREADS} --for-ms 200 > /tmp/crowd.json
tr '{{' '\\n' < /tmp/crowd.json | grep -c cpu_ns
"""
"""The report of so many is longer than what is kept of a program's output."""


@pytest.mark.stress
def test_many_groups_and_many_threads(boot: Boot, tmp_path: Path) -> None:
    """A shell that visits groups, under stress more than there are slots for; then a crowd, which wakes all at once."""
    machine = slow(tmp_path, "cores = 4", SPEED, MEMORY_MIB)
    fill = f"echo +cpu > cgroup.subtree_control && for i in $(seq {GROUPS}); do mkdir many$i || exit; done"
    use = f"for i in $(seq 1 {max(1, GROUPS // 100)} {GROUPS}); do echo $$ > /sys/fs/cgroup/many$i/cgroup.procs; done"
    results = boot(
        [
            shell("groups", f"cd /sys/fs/cgroup && {fill}", timeout_ns=HOUR_NS),
            shell("tasks", use),
            *(write(f"/proc/sys/{path}", str(value)) for path, value in ROOM.items()),
            shell("crowd", CROWD, timeout_ns=HOUR_NS),
            read("state", STATE),
        ],
        machine=machine,
        sched=HEDDLE,
        timeout_ns=HOUR_NS,
        wall_timeout_s=WALL_TIMEOUT_S,
    )
    assert_scheduling(results)
    assert int(results.step("crowd").stdout) == THREADS


MIXED_STRESSORS = "affinity clone fork futex mq mutex nice pthread sem session sleep switch vfork wait yield zombie"

COME_AND_GO = f"""
while [ $SECONDS -lt {MIXED_S} ]; do
  for on in 0 1; do echo $on > {ONLINE.format(3)}; sleep 1.7; done
done
"""

CHURN = f"""
cd /sys/fs/cgroup
while [ $SECONDS -lt {MIXED_S} ]; do
  mkdir churn
  echo $((RANDOM % 10000 + 1)) > churn/cpu.weight
  echo "$((RANDOM % 90 + 10))000 100000" > churn/cpu.max
  for task in 1 2 3; do (echo $BASHPID > churn/cgroup.procs; exec timeout 0.3 sh -c 'while :; do :; done') & done
  wait
  rmdir churn || exit
done
"""

PINNED = ["--threads", "3", "--policy", "other,other,idle", "--nice", "0,19,0", "--cpus", "1"]
"""hogs of which two may have next to nothing"""


@pytest.mark.stress
def test_mixed_stress_stalls_nobody(boot: Boot, tmp_path: Path) -> None:
    """All at once: forks, messages, groups with weights and limits, a CPU that comes and goes, hogs of least weight."""
    machine = slow(tmp_path, "cores = 4", speed=5)
    limit = {"timeout_ns": 2 * MIXED_S * SECOND_NS}
    results = boot(
        [
            Step(name="controllers", action=CgroupSet(cgroup="any", file="cpu.weight", value="100")),
            spin("hogs", *PINNED, for_ms=MIXED_S * 1000, background=True, **limit),
            shell("groups", CHURN, background=True, **limit),
            shell("cpus", COME_AND_GO, background=True, **limit),
            stress_ng("stressors", MIXED_STRESSORS, MIXED_S, uid=1000, **limit),
            *(wait(name) for name in ("hogs", "groups", "cpus")),
            read("state", STATE),
        ],
        machine=machine,
        sched=HEDDLE,
        layers=["stress"],
        timeout_ns=(2 * MIXED_S + 120) * SECOND_NS,
        wall_timeout_s=WALL_TIMEOUT_S,
    )
    assert_scheduling(results)
    assert min(cpu_ns(results, "hogs")) > 0


LINGER_JIFFIES = 250
"""a second, from one look of the kernel to the next at whether all CPUs have passed a grace period of RCU"""


@pytest.mark.parametrize("options", ["", " --runq global", " --idle builtin"])
def test_nobody_waits_for_a_cpu_that_is_long_in_going(boot: Boot, machine: str, options: str) -> None:
    """Long before ops.cpu_offline, while a grace period passes, the kernel no longer asks what to run there next."""
    rcu, looks = "/sys/module/rcutree/parameters/jiffies_till_{}_fqs", ("first", "next")
    trace = Trace(events=["sched:sched_switch"], filter='prev_comm == "pinned" || next_comm == "pinned"')
    hog = "echo -n pinned > /proc/self/comm; while :; do :; done"
    results = boot(
        [
            *(write(rcu.format(look), str(LINGER_JIFFIES)) for look in looks),
            Step(name="busy", argv=["sh", "-c", "while :; do :; done"], cpus="1", background=True),
            *(Step(name=f"hog {n}", argv=["bash", "-c", hog], cpus="3", background=True) for n in range(3)),
            sleep(100, "all wait for CPU 3"),
            shell("offline", f"echo 0 > {ONLINE.format(3)}", trace=trace),
            *(write(rcu.format(look), "1") for look in looks),
            read("state", STATE),
        ],
        machine=machine,
        sched=f"pinned={HEDDLE}{options}",
    )
    assert_scheduling(results)
    waits: list[int] = []
    since: dict[str, int] = {}
    for hit in results.trace("sched_switch"):
        since[hit.fields["prev_pid"]] = hit.time_ns
        if hit.fields["next_comm"] == "pinned":
            waits.append(hit.time_ns - since.get(hit.fields["next_pid"], hit.time_ns))
    assert len(waits) > 10
    assert max(waits) < 100 * MS, sorted(waits)[-5:]


def test_a_client_that_never_reads_holds_up_nobody(boot: Boot, machine: str) -> None:
    """Its answers fill the socket; the scheduler and other clients do not wait for it."""
    flood = """yes '{"req":"stats"}' | socat -u STDIN UNIX-CONNECT:/var/run/scx/root/stats"""
    results = boot(
        [
            shell("flood", flood, background=True, expect_exit=None),
            sleep(500, "it fills"),
            Step(name="it is connected", argv=["pgrep", "-x", "socat"]),
            spin("load", "--threads", "6", for_ms=100),
            Step(name="other client", argv=["timeout", "--preserve-status", "1", PROGRAM, "--monitor", "0.2"]),
            Step(name="kill", action=KillStep(step="flood")),
            read("state", STATE),
        ],
        machine=machine,
        sched=HEDDLE,
        layers=["socat"],
    )
    assert_scheduling(results)
    assert len(results.step("other client").stdout.splitlines()) >= 3


RAN = """
load=$(pgrep -x heddle-load)
for task in /proc/$load/task/*; do
  [ "${task##*/}" = "$load" ] || cut -d ' ' -f 1 "$task/schedstat"
done
"""
"""the time on a CPU of each thread but the first, which waits for the others"""

RESTART = f"""
for i in $(seq {RESTARTS}); do
  {PROGRAM} & loader=$!
  until [ "$(cat {STATE})" = enabled ]; do sleep 0.2; kill -0 $loader || exit 1; done
  kill -TERM $loader; wait $loader || exit 1
  until [ "$(cat {STATE})" = disabled ]; do sleep 0.2; done
done
"""

LEAK_KB = 16_384
"""of the memory that is free in the end; the first loads fill caches"""

FREED_MS = 20_000
"""The maps of a program, 19 MB, are freed some time after it has ended: on 6.18, now and then, after a second, on 6.12
after more than four."""


RESTARTS_NS = (RESTARTS * 30 + 120) * SECOND_NS
"""limit; a restart takes seconds on slow CPUs"""

RESTARTS_WALL_S = RESTARTS * 15 + 600


@pytest.mark.stress
def test_restarts_lose_no_task_and_no_memory(boot: Boot, machine: str) -> None:
    """The tasks sleep most of the time, so that they change hands asleep as well as running."""
    threads = ["--threads", "8", "--run-ms", "1", "--sleep-ms", "20"]
    results = boot(
        [
            Step(name="the job's own", action=SchedulerStop()),
            spin("load", *threads, for_ms=RESTARTS_NS // MS, background=True, timeout_ns=RESTARTS_NS, expect_exit=None),
            shell("warm up", RESTART.replace(f"seq {RESTARTS}", "seq 2")),
            sleep(FREED_MS, "freed before"),
            read("before", "/proc/meminfo"),
            shell("restarts", RESTART, timeout_ns=RESTARTS_NS),
            sleep(FREED_MS, "freed after"),
            read("after", "/proc/meminfo"),
            shell("ran before", RAN),
            sleep(200, "all run"),
            shell("ran after", RAN),
            Step(name="end", action=KillStep(step="load")),
        ],
        machine=machine,
        sched=HEDDLE,
        timeout_ns=RESTARTS_NS,
        wall_timeout_s=RESTARTS_WALL_S,
    ).check()
    before, after = ([int(ns) for ns in results.step(f"ran {when}").stdout.split()] for when in ("before", "after"))
    assert len(before) == 8
    assert all(later > earlier for earlier, later in zip(before, after, strict=True)), (before, after)

    def available(step: str) -> int:
        [line] = [line for line in results.step(step).stdout.splitlines() if line.startswith("MemAvailable:")]
        return int(line.split()[1])

    assert available("before") - available("after") < LEAK_KB


IMPATIENT = SchedulerCommand(name="impatient", argv=["env", "SCX_TIMEOUT_MS=500", PROGRAM])


@pytest.mark.every_kernel
def test_real_time_hogs_on_every_cpu(boot: Boot, machine: str) -> None:
    """They run before all others: a kernel that keeps some time for sched_ext's tasks goes on, another one takes over.

    A scheduler cannot help it: it is not asked for a task while one of a higher class runs.
    """
    spinning = ["bash", "-c", "while [ $SECONDS -lt 2 ]; do :; done"]
    hogs = [Step(name=f"hog {cpu}", argv=spinning, cpus=str(cpu), policy="fifo", background=True) for cpu in range(4)]
    results = boot(
        [
            Step(name="the job's own", action=SchedulerStop()),
            Step(name="start", action=SchedulerStart(scheduler=IMPATIENT)),
            spin("load", "--threads", "4", for_ms=2500, background=True),
            sleep(50),
            *hogs,
            *(wait(hog.name) for hog in hogs),
            wait("load"),
            read("state", STATE),
        ],
        machine=machine,
        sched=HEDDLE,
    )
    assert results.failure is None
    assert min(cpu_ns(results, "load")) > 100 * MS
    last = results.of("scheduler")[-1]
    if results.step("state").stdout.strip() == "disabled":
        [line] = [line for line in last["stderr"].splitlines() if line.startswith("scx_heddle: ")]
        assert "stall" in line
    else:
        assert last["state"] == "detached"
