"""Asymmetric packing, seen on a real kernel: 8 fast cores with two threads each, 8 slow cores."""

import json

import pytest

from heddle_lab import machine
from heddle_lab.job import Read, SchedulerCommand, SchedulerStart, SchedulerStop, Step, WaitStep, Write
from heddle_lab.results import Results
from tests.conftest import Boot
from tests.vm.counting import PROGRAM, counted, counters

HEDDLE = "scx_heddle"
HYBRID = "alderlake-8p8e"
FAST, SLOW = 8, 8

FOR_MS = 100


def hogs(number: int, name: str = "", *, background: bool = False) -> Step:
    argv = ["heddle-load", "spin", "--threads", str(number), "--for-ms", str(FOR_MS)]
    return Step(name=name or f"{number} hogs", argv=argv, background=background)


def work(results: Results, step: str) -> int:
    """Turns of the loop that all hogs of a step went through."""
    return sum(thread["iterations"] for thread in json.loads(results.step(step).stdout)["threads"])


def ideal(number: int) -> float:
    """The work of the best places: fast cores, then slow ones, then second threads; 1 is a fast core alone."""
    box = machine.load(HYBRID)
    slow = min(cpu.speed for cpu in box.layout()) / max(cpu.speed for cpu in box.layout())
    second = 2 * box.clock.smt / 100 - 1
    return min(number, FAST) + slow * min(max(number - FAST, 0), SLOW) + second * max(number - FAST - SLOW, 0)


def test_hogs_get_the_best_places_there_are(boot: Boot) -> None:
    """One more than there are fast cores comes to a slow one, one more than cores shares one."""
    numbers = (1, 4, 8, 9, 12, 16, 17, 20, 24)
    results = boot(counted("hybrid", [], [*map(hogs, numbers)]), machine=HYBRID, sched=HEDDLE)
    alone = work(results.check(), "1 hogs")
    got = {number: work(results, f"{number} hogs") / alone / ideal(number) for number in numbers}
    assert min(got.values()) > 0.97, got
    events = counters(results, "hybrid")
    moves = events["asym_moved"]
    assert events["asym_fastest"] > 0
    assert events["asym_slower"] > 0
    assert events["asym_sibling"] > 0
    assert 0 < moves <= events["asym_help"] + events["asym_flee"]
    assert moves < sum(numbers)  # nobody goes to and fro


def test_equal_cpus_know_of_no_ranks(boot: Boot) -> None:
    steps = [
        Step(name="topology", argv=[PROGRAM, "--topology"]),
        *counted("equal", [], [hogs(6)]),
    ]
    results = boot(steps, sched=HEDDLE).check()
    assert results.step("topology").stdout.startswith("all CPUs have the same priority\n")
    events = {name: value for name, value in counters(results, "equal").items() if name.startswith("asym_")}
    assert events
    assert set(events.values()) == {0}


def test_the_best_cores_may_go_and_come_back(boot: Boot) -> None:
    online = "/sys/devices/system/cpu/cpu{}/online"
    turns = [
        Step(name=f"CPU {cpu}: {value}", action=Write(path=online.format(cpu), value=value))
        for value in "01"
        for cpu in (2, 3, 4, 5)
    ]
    steps = [
        hogs(8, "load", background=True),
        *turns,
        Step(name="wait", action=WaitStep(step="load")),
        Step(name="state", action=Read(path="/sys/kernel/sched_ext/state")),
    ]
    results = boot(steps, machine=HYBRID, sched=HEDDLE).check()
    assert results.step("state").stdout.strip() == "enabled"
    assert results.step("load").exit == 0


def test_a_list_overrides_what_the_machine_says(boot: Boot) -> None:
    """On four equal CPUs, 2 and 3 are called better: that is where two hogs run."""
    better = SchedulerCommand(name="better", argv=[PROGRAM, "--asym", "0-1:50,2-3:100"])
    pair = ["heddle-load", "spin", "--threads", "2", "--for-ms", str(FOR_MS)]
    steps = [
        Step(name="stop", action=SchedulerStop()),
        Step(name="start", action=SchedulerStart(scheduler=better)),
        Step(name="pair", argv=pair),
    ]
    results = boot(steps, sched=HEDDLE).check()
    threads = json.loads(results.step("pair").stdout)["threads"]
    seen = [set(thread["cpus"]) for thread in threads]
    assert all(cpus & {2, 3} for cpus in seen)
    assert seen[0] | seen[1] >= {2, 3}


@pytest.mark.parametrize(("fair", "share"), [("time", 0.25), ("work", 1 / 3)])
def test_what_is_shared_fairly_is_time_or_work(boot: Boot, fair: str, share: float) -> None:
    """One hog may run on a slow CPU only, two there and on a fast one.

    Of time each gets 2/3 of a CPU, which for the first is 0.4 of the 1.6 that the two CPUs do.
    """
    fast, slow = 0, 16
    # Tasks change places when one is a slice behind, which is little of a second.
    spin = ["heddle-load", "spin", "--for-ms", "1000"]
    command = SchedulerCommand(name=fair, argv=[PROGRAM, "--fair", fair])
    steps = [
        Step(name="stop", action=SchedulerStop()),
        Step(name="start", action=SchedulerStart(scheduler=command)),
        Step(name="free", argv=[*spin, "--threads", "2", "--cpus", f"{fast},{slow}"], background=True),
        Step(name="bound", argv=[*spin, "--threads", "1", "--cpus", str(slow)]),
        Step(name="wait", action=WaitStep(step="free")),
    ]
    results = boot(steps, machine=HYBRID, sched=HEDDLE).check()
    bound, free = work(results, "bound"), work(results, "free")
    assert bound / (bound + free) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize(
    ("priorities", "named"),
    [("0-3", "CPUS:PRIORITY"), ("0-3:0", "CPUS:PRIORITY"), ("0-2:5", "CPU 3"), ("0-4:5", "CPU 4")],
)
def test_lists_that_do_not_fit_are_refused(boot: Boot, priorities: str, named: str) -> None:
    steps = [
        Step(name="stop", action=SchedulerStop()),
        Step(name="refused", argv=[PROGRAM, "--asym", priorities], expect_exit=None),
    ]
    refused = boot(steps, sched=HEDDLE).check().step("refused")
    assert refused.exit in (1, 2)
    assert named in refused.stderr
    assert "panicked" not in refused.stderr
