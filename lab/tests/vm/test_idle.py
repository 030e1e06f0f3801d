"""Idle CPUs: what scx_heddle knows of them, and whether wakees find them."""

import json
import re
from statistics import fmean

import pytest

from heddle_lab.job import SchedulerCommand, SchedulerStart, SchedulerStop, Step, Trace
from heddle_lab.results import Results
from tests.conftest import Boot, Record
from tests.vm.counting import APART, MS, PROGRAM, counted, counters
from tests.vm.loads import schbench
from tests.vm.test_core import HEDDLE, STATE, cpu_ns, read, sleep, spin, write

pytestmark = pytest.mark.vm

POLICIES = ("mask", "tick-mask", "scan", "builtin")
MACHINE, CPUS, CORES, LLC_CPUS = "smp-16-2llc", 16, 8, 8
HYBRID = "alderlake-8p8e"
SOCKETS, SOCKETS_CPUS, SOCKET_CPUS = "xeon-4s-192", 192, 48


def dump(name: str) -> Step:
    """SysRq-D, whose text the kernel writes to a tracepoint."""
    argv = ["bash", "-c", "sleep 0.05; echo D > /proc/sysrq-trigger"]
    return Step(name=name, argv=argv, trace=Trace(events=["sched_ext:sched_ext_dump"]))


def dumped_cpus(results: Results) -> list[tuple[bool, bool]]:
    """Return for each CPU of the one dump whether it ran the idle task, and whether it could be claimed."""
    text = "\n".join(re.findall(r"sched_ext_dump: ?(.*)", results.trace_text))
    cpus = re.findall(r"CPU \d+ .*?curr=(\S+)\[(\d+)\].*?known=(\d)", text, re.DOTALL)
    return [(pid == "0", known == "1") for _, pid, known in cpus]


def in_first_node(results: Results, step: str) -> float:
    """Return the part of the runs of heddle-load's tasks in a step that were on the first socket."""
    switches = results.trace("sched_switch", step)
    runs = [switch.cpu for switch in switches if switch.fields["next_comm"] == "heddle-load"]
    assert len(runs) >= 100
    return sum(cpu < SOCKET_CPUS for cpu in runs) / len(runs)


def ended_on_the_target(trace_text: str) -> float:
    """Return the part of a ping-pong's wakeups that the CPU of the wakee ended, not that of the waker."""
    found = re.findall(r"\[(\d+)\].*sched_wakeup: comm=heddle-load.*target_cpu=(\d+)", trace_text)
    assert len(found) >= 300, trace_text[:2000]
    return sum(int(cpu) == int(target) for cpu, target in found) / len(found)


SENT_TO_A_BUSY_CPU = ("preempt", "idle_late", *(f"wakeq_{what}" for what in ("offered", "migrated", "full", "busy")))
"""counts of wakees, all of those that find their CPU busy"""


def test_each_policy_finds_idle_cpus_at_its_price(boot: Boot) -> None:
    parts = {policy: counted(policy, ["--idle", policy], [schbench(policy, 0.5, CPUS)]) for policy in POLICIES}
    results = boot([step for part in parts.values() for step in part], machine=MACHINE, sched=HEDDLE).check()
    got = {policy: counters(results, policy) for policy in POLICIES}
    for policy in ("mask", "tick-mask", "scan"):
        count = got[policy]
        # At half load there is always an idle CPU, and nobody is sent to a busy one.
        assert count["idle_search"] > 600, policy
        assert count["idle_claim"] >= 0.99 * count["idle_search"], policy
        assert sum(count[name] for name in SENT_TO_A_BUSY_CPU) <= 0.05 * count["idle_search"], policy
    assert got["mask"]["idle_examined"] < 1.2 * got["mask"]["idle_search"]
    assert got["mask"]["idle_claim_false"] <= 0.01 * got["mask"]["idle_claim"]
    assert got["scan"]["idle_examined"] >= LLC_CPUS * got["scan"]["idle_search"]
    # A bit that no tick has cleared yet costs a look.
    assert got["tick-mask"]["idle_claim_false"] > 0
    assert got["builtin"]["idle_search"] == got["builtin"]["idle_claim"] == 0
    assert got["builtin"]["idle_direct"] > 600


def test_above_saturation_a_search_is_short_on_many_cpus(boot: Boot, record_property: Record) -> None:
    """With bits, however many CPUs are busy; without, every CPU of the LLC is looked at."""
    parts = {
        policy: counted(policy, ["--idle", policy], [schbench(policy, 1.25, SOCKETS_CPUS, requests=2000)])
        for policy in ("mask", "scan")
    }
    results = boot([step for part in parts.values() for step in part], machine=SOCKETS, sched=HEDDLE).check()
    got = {policy: counters(results, policy) for policy in parts}
    examined = {policy: count["idle_examined"] / count["idle_search"] for policy, count in got.items()}
    record_property(f"CPUs examined per search on {SOCKETS_CPUS}, {boot.kernel}", examined)
    assert examined["mask"] <= 2
    assert examined["scan"] >= SOCKET_CPUS


PAIRS = 5


def test_a_large_program_is_spread_over_the_nodes_and_a_small_one_stays(boot: Boot) -> None:
    """Its threads sleep at first, so that the parent's node seems to have room for all of them."""
    runs = Trace(events=["sched:sched_switch"])
    pairs = [f"pair {number}" for number in range(PAIRS)]
    pair = ["heddle-load", "pingpong", "--count", "200"]
    steps = [
        *(Step(name=name, argv=pair, trace=runs) for name in pairs),
        schbench("many", 0.5, SOCKETS_CPUS, requests=2000, trace=runs),
    ]
    results = boot(steps, machine=SOCKETS, sched=HEDDLE).check()
    on_first = {step: in_first_node(results, step) for step in ("many", *pairs)}
    # A quarter, were all sockets used alike; before tasks were spread, nearly none or nearly all.
    assert 0.15 < on_first["many"] < 0.4, on_first
    # Where tasks of others start meanwhile, one may go elsewhere.
    assert sum(0.05 <= on_first[name] <= 0.95 for name in pairs) <= 1, on_first


TRIPS = 300


@pytest.mark.every_kernel
def test_the_woken_cpu_queues_its_wakee_unless_told_otherwise(boot: Boot) -> None:
    """Two tasks on two CPUs wake each other, each on an idle CPU. The kernel says where a wakeup ends."""

    def pair(*options: str) -> Results:
        scheduler = SchedulerCommand(name="told", argv=[PROGRAM, *APART, *options])
        argv = ["heddle-load", "pingpong", "--count", "200"]
        steps = [
            Step(name="stop", action=SchedulerStop()),
            Step(name="start", action=SchedulerStart(scheduler=scheduler)),
            Step(name="pair", argv=argv, trace=Trace(events=["sched:sched_wakeup"])),
        ]
        return boot(steps, sched=HEDDLE)

    assert ended_on_the_target(pair("--queued-wakeup=off").check().trace_text) < 0.1
    if boot.kernel == "6.12":  # Schedulers cannot choose it before 6.15.
        assert "--queued-wakeup" in (pair("--queued-wakeup").error or "")
        return
    assert ended_on_the_target(pair().check().trace_text) > 0.9


def test_a_wakee_stays_near_its_caches(boot: Boot) -> None:
    """Six pairs on eight cores, the two of each on two CPUs: half of the CPUs idle, and of each LLC some."""
    number, trips = 6, 300
    argv = ["heddle-load", "pingpong", "--pairs", str(number), "--count", str(trips)]
    pair = Step(name="pairs", argv=argv, trace=Trace(events=["sched:sched_migrate_task"]))
    results = boot(counted("apart", APART, [pair]), machine=MACHINE, sched=HEDDLE).check()
    moves = [move.fields for move in results.trace("sched_migrate_task", "pairs")]
    crossed = sum(int(at["orig_cpu"]) // LLC_CPUS != int(at["dest_cpu"]) // LLC_CPUS for at in moves)
    assert crossed < 0.02 * 2 * number * trips, crossed


def test_without_an_idle_core_a_child_shares_its_parents(boot: Boot) -> None:
    """As a rule a parent waits for its child, which then has the core to itself. Any other core has its own task."""
    hogs = ["--threads", str(CORES - 1), "--cpus", ",".join(map(str, range(2, CPUS, 2))), "--pin"]
    child = "heddle-load spin --threads 1 --for-ms 1"
    steps = [
        spin("hogs", *hogs, for_ms=10_000, background=True),
        sleep(20),
        Step(name="children", argv=["bash", "-c", f"for i in {{1..20}}; do {child}; echo; done"]),
    ]
    results = boot(steps, machine=MACHINE, sched=HEDDLE).check()
    reports = [json.loads(line) for line in results.step("children").stdout.splitlines() if line]
    seen = [set(report["threads"][0]["cpus"]) for report in reports]
    assert len(seen) == 20
    # Where a kernel thread is in the way, one goes elsewhere.
    assert sum(cpus <= {0, 1} for cpus in seen) >= 18, seen


def pairs(name: str, number: int) -> Step:
    """Return a step in which the two of each of `number` pairs wake each other."""
    return Step(name=name, argv=["heddle-load", "pingpong", "--pairs", str(number), "--count", str(TRIPS)])


def throughput(results: Results, name: str) -> float:
    """Return that of pairs."""
    return float(json.loads(results.step(name).stdout)["throughput"])


def test_a_brief_waker_hands_over_its_cpu(boot: Boot) -> None:
    """Each pair runs one at a time. On one CPU it wakes nobody from idle, and so gets on faster, others or none."""
    numbers = {"many": CPUS, "few": 2}
    steps = []
    for kind, number in numbers.items():
        steps += counted(kind, [], [pairs(kind, number)])
        steps += counted(f"{kind} apart", APART, [pairs(f"{kind} apart", number)])
    results = boot(steps, machine=MACHINE, sched=HEDDLE).check()
    for kind, number in numbers.items():
        assert counters(results, kind)["handed_over"] > 0.5 * 2 * number * TRIPS, kind
        assert counters(results, f"{kind} apart")["handed_over"] == 0, kind
        assert throughput(results, kind) > 1.05 * throughput(results, f"{kind} apart"), kind


def test_where_cpus_differ_pairs_stay_together_on_fast_ones(boot: Boot) -> None:
    """Twelve pairs on sixteen cores would chase each other over all of them; two pairs have a fast core each."""
    kinds, turns = {"many": (12, []), "apart": (12, APART), "few": (2, [])}, 3
    steps = []
    for kind, (number, options) in kinds.items():
        steps += counted(kind, options, [pairs(f"{kind} {turn}", number) for turn in range(turns)])
    results = boot(steps, machine=HYBRID, sched=HEDDLE).check()
    assert counters(results, "many")["handed_over"] > turns * 12 * TRIPS
    assert counters(results, "few")["handed_over"] > turns * 2 * TRIPS
    # Which pairs get the fast cores is chance, and a turn has 0.05 more or less of it.
    many, apart = (fmean(throughput(results, f"{kind} {turn}") for turn in range(turns)) for kind in ("many", "apart"))
    assert many > 1.05 * apart, (many, apart)


@pytest.mark.every_kernel
def test_when_all_is_quiet_the_mask_is_the_set_of_idle_cpus(boot: Boot) -> None:
    """After a load with wakeups, preemption and CPUs that come and go, every idle CPU can be claimed, no other."""
    online = "echo {} > /sys/devices/system/cpu/cpu5/online"
    load = [
        schbench("load", 1.25, CPUS, background=True),
        Step(name="hotplug", argv=["bash", "-c", f"{online.format(0)}; {online.format(1)}"]),
        Step(name="messages", argv=["hackbench", "-g", "2", "-f", "4", "-l", "100"]),
    ]
    results = boot([*load, dump("dump")], machine=MACHINE, sched=HEDDLE).check()
    cpus = dumped_cpus(results)
    assert len(cpus) == CPUS
    assert all(idle == known for idle, known in cpus), cpus
    assert sum(idle for idle, _ in cpus) >= CPUS - 2


@pytest.mark.every_kernel
def test_a_cpu_unknown_so_far_makes_the_scheduler_start_anew(boot: Boot) -> None:
    online = "/sys/devices/system/cpu/cpu3/online"
    steps = [
        Step(name="stop", action=SchedulerStop()),
        write(online, "0"),
        Step(name="start", action=SchedulerStart()),
        write(online, "1"),
        sleep(500),
        spin("hogs", "--threads", "4", for_ms=50),
        read("state", STATE),
    ]
    results = boot(steps, sched=HEDDLE).check()
    assert results.step("state").stdout.strip() == "enabled"
    assert min(cpu_ns(results, "hogs")) > 45_000_000


def test_idle_cores_come_before_idle_siblings_and_sched_idle_tasks_give_way(boot: Boot) -> None:
    """Half as many hogs as cores: each has a core of one of both LLCs to itself, and so gets as far as the others.

    With as many as there are cores, one would find a core that another task just passes through, and stay beside it.
    Were threads chosen at random, all eight rounds would come out so once in fifty.
    """
    rounds = [f"cores {number}" for number in range(8)]
    lowly = spin("lowly", "--threads", str(CPUS), "--policy", "idle", for_ms=10_000, background=True)
    steps = [
        *(spin(name, "--threads", str(CORES // 2), for_ms=50) for name in rounds),
        *counted("lowly", [], [lowly, schbench("wakees", 0.5, CPUS, requests=1000)]),
    ]
    results = boot(steps, machine=MACHINE, sched=HEDDLE).check()
    works = [[hog["iterations"] for hog in json.loads(results.step(name).stdout)["threads"]] for name in rounds]
    assert all(min(work) > 0.95 * max(work) for work in works), works
    got = counters(results, "lowly")
    assert got["sched_idle_claim"] > 1000
    latency = json.loads(results.step("wakees").stdout)["wakeup_latency_ns"]
    # Far below a slice of the hogs, for which they would wait if those did not give way.
    assert latency["p99"] < 500_000


def test_tasks_of_the_idle_policy_give_their_cpus_to_new_ones_and_do_not_come_back(boot: Boot) -> None:
    """As many new hogs as CPUs, beside as many of the idle policy: each has a CPU to itself, all the time."""
    rounds = [f"hogs {number}" for number in range(4)]
    lowly = spin("lowly", "--threads", "4", "--policy", "idle", for_ms=60_000, background=True)
    hogs = [spin(name, "--threads", "4", for_ms=100) for name in rounds]
    results = boot([lowly, sleep(100), *hogs], machine="smp-4", sched=HEDDLE).check()
    assert sum(sum(cpu_ns(results, name)) for name in rounds) > 0.96 * len(rounds) * 4 * 100 * MS
