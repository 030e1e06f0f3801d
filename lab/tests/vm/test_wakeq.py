"""The shared wake queue: which wakees are offered, which CPUs take them, and that nothing is lost."""

import json
import statistics
from pathlib import Path

import pytest

from heddle_lab import machine, tracing, vm
from heddle_lab.job import KillStep, SchedulerStop, Step, Trace
from heddle_lab.measures import affinity, idle, missed
from heddle_lab.measures.events import Events, Kind
from heddle_lab.measures.timeline import IDLE, Cause, Timeline
from tests.conftest import Boot, Record
from tests.vm.counting import APART, INTERVAL_S, PATIENT, WAKES, counted, counters
from tests.vm.loads import schbench
from tests.vm.machines import plain
from tests.vm.test_core import HEDDLE, MS, STATE, read, spin, wait

pytestmark = pytest.mark.vm

MACHINE, CPUS, LLC_CPUS = "smp-8-2llc", 8, 4
RING_SLOTS = 64
DROPPED = ("wakeq_gone", "wakeq_stale", "wakeq_barred")
TAKEN = ("wakeq_pulled", "wakeq_stolen")


def assert_accounted_for(got: dict[str, int], queues: int) -> None:
    """Every reference was taken, or dropped, or is one of those that a queue has room for."""
    left = got["wakeq_offered"] - sum(got[name] for name in TAKEN + DROPPED)
    assert 0 <= left <= RING_SLOTS * queues, got


def waits_ended(recorded: Events, line: Timeline, grace_ns: int) -> tuple[int, int]:
    """Return how many wakees waited and went on in that LLC, and for how many the CPU that took them had gone idle."""
    runs = line.runs
    row_of = {key: row for row, key in enumerate(zip(runs.pid.tolist(), runs.start_ns.tolist(), strict=True))}
    long = line.waits.end_ns - line.waits.start_ns > grace_ns
    waits = line.waits.take((line.waits.cause == Cause.WOKEN) & line.waits.ran & long)
    rows = [row_of[key] for key in zip(waits.pid.tolist(), waits.end_ns.tolist(), strict=True)]
    rows = [row for row in rows if llc_woken_in(recorded, line, row) == runs.cpu[row] // LLC_CPUS]
    return len(rows), sum(runs.cpu[row - 1] == runs.cpu[row] and runs.pid[row - 1] == IDLE for row in rows)


def llc_woken_in(recorded: Events, line: Timeline, row: int) -> int:
    """Return the LLC in which the task of a run was queued as it woke up."""
    wakeups = recorded.where(Kind.WAKEUP, Kind.WAKEUP_NEW)
    own = wakeups[
        (recorded.pid[wakeups] == line.runs.pid[row]) & (recorded.time_ns[wakeups] <= line.runs.start_ns[row])
    ]
    return int(recorded.value[own[-1]]) // LLC_CPUS


def test_the_oldest_wakee_is_pulled_by_the_next_cpu_without_work(boot: Boot) -> None:
    """Above saturation, traced: no CPU stays idle while a wakee waits. Then a flood, which nobody must drown in."""
    events = [event for event in tracing.EVENTS if event != affinity.EVENT]
    trace = Trace(events=events, format="raw", buffer_kb=16384)
    steps = [
        *counted("llc", PATIENT, [schbench("load", 1.25, CPUS, 4000), schbench("flood", 3, CPUS, 1500)]),
        *counted("off", ["--wakeq", "off"], [schbench("without", 1.25, CPUS, 500)]),
        schbench("wakees", 1.25, CPUS, 1500, trace=trace),
    ]
    results = boot(steps, machine=MACHINE, sched=HEDDLE).check()
    got = counters(results, "llc")
    assert got["wakeq_offered"] > 500
    assert got["wakeq_pulled"] > 100
    assert got["wakeq_stolen"] > 10
    assert got["wakeq_migrated"] > 0
    # Of those that were not pulled most ran at home first; their references were found out.
    assert got["wakeq_gone"] > 10
    assert_accounted_for(got, queues=2)
    # A flood leaves hardly a CPU idle, and the queue fills up.
    assert got["wakeq_full"] > 0
    assert json.loads(results.step("flood").stdout)["wakeup_latency_ns"]["max"] < 30 * MS
    without = counters(results, "off")
    assert not any(count for name, count in without.items() if name.startswith("wakeq_"))
    assert without["pull_llc"] > 50
    recorded = tracing.events_of(results, "wakees")
    line = tracing.line_of(recorded, results)
    where = affinity.find(recorded)
    grace_ns = idle.GRACE_NS + machine.load(MACHINE).costs.longest_exit_ns
    assert idle.wasted_idle(line, where, grace_ns).fraction < 0.001
    assert missed.missed_idle(line, where).fraction < 0.01
    # Within one switch: the CPU that took a wakee switched to it from the task that it had run before.
    waited, idled = waits_ended(recorded, line, grace_ns)
    assert waited > 100
    assert idled < 0.01 * waited


def test_wakees_are_offered_to_those_only_that_may_take_them(boot: Boot) -> None:
    """A pinned wakee is never offered; one that may run on half of the CPUs is not taken by the other half."""
    argv = ["heddle-load", "pingpong", "--cpus", "1", "--count", "300"]
    pinned = [
        spin("hogs", "--threads", "2", "--cpus", "1", for_ms=10_000, background=True),
        # SCHED_BATCH: a wakee that preempts waits nowhere, and then its partner need not be woken either.
        Step(name="pair", argv=argv, policy="batch"),
        Step(name="enough", action=KillStep(step="hogs")),
    ]
    halves = [
        Step(
            name=cpus,
            argv=["heddle-load", "pingpong", "--pairs", str(pairs), "--cpus", cpus, "--count", "300"],
            background=True,
        )
        for cpus, pairs in (("0-1", 4), ("2-3", 1))
    ]
    parts = [*counted("pinned", [], pinned), *counted("halves", [], [*halves, *map(wait, ("0-1", "2-3"))])]
    results = boot(parts, sched=HEDDLE).check()
    got = counters(results, "pinned")
    assert got["wakeq_pinned"] > 500
    assert got["wakeq_offered"] < 5  # of others, such as the loader
    got = counters(results, "halves")
    assert got["wakeq_offered"] > 100
    assert got["wakeq_barred"] > 0
    assert_accounted_for(got, queues=1)


@pytest.mark.every_kernel
@pytest.mark.stress
def test_no_wakeup_is_lost_and_no_reference_outlives_its_task(boot: Boot) -> None:
    """Many more tasks than CPUs wake each other, while CPUs whose tasks are referred to come and go."""
    pairs = 3 * CPUS
    trips = WAKES // 2 // pairs
    hotplug = """
    for _ in $(seq {}); do
      for change in 3=0 6=0 6=1 3=1; do
        sleep 0.02
        echo ${{change#*=}} > /sys/devices/system/cpu/cpu${{change%=*}}/online
      done
    done
    """
    argv = ["heddle-load", "pingpong", "--pairs", str(pairs), "--count", str(trips)]
    load = [
        Step(name="load", argv=argv, background=True, timeout_ns=WAKES * MS),
        Step(name="hotplug", argv=["bash", "-c", hotplug.format(WAKES // 100_000)], timeout_ns=WAKES * MS),
        wait("load").model_copy(update={"timeout_ns": WAKES * MS}),
        read("state", STATE),
    ]
    steps = counted("stress", ["--wakeq-shard", "2", *APART], load, interval_s=max(INTERVAL_S, WAKES / 500_000))
    wall_timeout_s = vm.WALL_TIMEOUT_S * max(1, WAKES / 1_000_000)
    results = boot(
        steps, machine=MACHINE, sched=HEDDLE, timeout_ns=(60_000 + WAKES) * MS, wall_timeout_s=wall_timeout_s
    ).check()
    assert results.step("state").stdout.strip() == "enabled"
    assert json.loads(results.step("load").stdout)["count"] == trips
    got = counters(results, "stress")
    assert got["wakeq_offered"] > 500
    assert got["wakeq_stale"] > 0
    assert_accounted_for(got, queues=4)
    refused = [got[f"wakeq_{cause}"] for cause in ("pinned", "migrated", "full", "busy")]
    assert got["wakeq_offered"] + sum(refused) <= got["queued"]


COST_OVER_EEVDF = {"6.12": 1.35, "6.18": 1.35, "7.3": 1.15}
"""the bar is a tenth over the EEVDF of 7.3, which takes 7,870 instructions, in some processes 7,043 or 6,755, for a
cause not known; those of 6.18 and 6.12 take 5,830 and 5,610. Of what scx_heddle takes, some 600 are the CPU
controller's (test_cgroup.py)"""

PROCESSES = 5
"""whose median counts"""


@pytest.mark.parametrize("where", ["one", "free"])
def test_a_wakeup_and_a_switch_cost_what_eevdfs_do(
    boot: Boot, tmp_path: Path, record_property: Record, where: str
) -> None:
    """On one CPU, in instructions; and free to use idle CPUs, in ns, on a machine where to wake one has its costs."""
    argv = ["heddle-load", "pingpong", "--count", "1000", *(["--cpus", "1"] if where == "one" else [])]
    box = plain(tmp_path, 4) if where == "one" else MACHINE

    def pairs(sched: str) -> list[Step]:
        return [Step(name=f"{sched} {number}", argv=argv) for number in range(PROCESSES)]

    stop = Step(name="stop", action=SchedulerStop())
    results = boot([*pairs(HEDDLE), stop, *pairs("eevdf")], machine=box, sched=HEDDLE).check()
    costs = {
        sched: sorted(
            round(json.loads(results.step(f"{sched} {number}").stdout)["one_way_ns"]) for number in range(PROCESSES)
        )
        for sched in (HEDDLE, "eevdf")
    }
    record_property(f"a wakeup and a switch on {boot.kernel}, {where}", costs)
    assert statistics.median(costs[HEDDLE]) <= COST_OVER_EEVDF[boot.kernel] * statistics.median(costs["eevdf"])
