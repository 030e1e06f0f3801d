"""Packing against timelines with known answers, and against a machine whose states are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import machine
from heddle_lab.machine import CoreClass, Cpu, Topology
from heddle_lab.measures import affinity, packing
from heddle_lab.measures.affinity import Affinity
from heddle_lab.measures.packing import Misplaced
from heddle_lab.measures.timeline import IDLE, Runs, Timeline, Waits
from tests.measures import reference
from tests.measures.reference import TICK_NS, Truth
from tests.measures.test_measures import built

# Two fast cores with two threads each (CPUs 0-1 and 2-3), two slow ones (4 and 5).
FAST = CoreClass(name="P", cores=2, threads=2, speed=100)
SLOW = CoreClass(name="E", cores=2, threads=1, speed=60)
HYBRID = Topology(cores=4, threads=2, classes=[FAST, SLOW]).layout()
ANYWHERE = Affinity(0b111111, {})
SMT = 63
"""second threads add 26 %"""


def line(end: int, *tasks: tuple[int, int, int, int], waits: tuple[tuple[int, int, int], ...] = ()) -> Timeline:
    """Return a timeline of (CPU, pid, begin, end), idle elsewhere, and of waits (pid, begin, end)."""
    rows = []
    for cpu in range(len(HYBRID)):
        now = 0
        for _, pid, begin, until in sorted(task for task in tasks if task[0] == cpu):
            rows += [(cpu, IDLE, now, begin)] * (begin > now) + [(cpu, pid, begin, until)]
            now = until
        rows += [(cpu, IDLE, now, end)] * (end > now)
    runs = np.array(rows, dtype=np.int64)
    waited = np.array(waits, dtype=np.int64).reshape(-1, 3)
    nothing = np.zeros(len(waited), dtype=np.int64)
    return Timeline(
        start_ns=0,
        end_ns=end,
        cpus=len(HYBRID),
        runs=Runs(*runs.T, np.zeros(len(runs), dtype=np.int64)),
        waits=Waits(*waited.T, nothing, nothing == 0),
        instant=0,
        comms={},
        prios={},
    )


def test_two_on_a_core_are_misplaced_while_another_idles() -> None:
    two = [(0, 100, 0, 100), (1, 101, 20, 70)]
    assert packing.misplaced(line(100, *two), ANYWHERE, HYBRID) == Misplaced(50, 50, 100)
    # The other cores come to be busy one after the other: the last one at 60.
    others = [(2, 102, 0, 100), (4, 104, 0, 100), (5, 105, 60, 100)]
    assert packing.misplaced(line(100, *two, *others), ANYWHERE, HYBRID) == Misplaced(40, 40, 100)
    # One thread of a core makes it busy, whichever.
    others = [(3, 102, 0, 100), (4, 104, 0, 100), (5, 105, 0, 100)]
    assert packing.misplaced(line(100, *two, *others), ANYWHERE, HYBRID) == Misplaced(0, 0, 100)


def test_a_task_is_better_off_on_a_faster_core_that_idles() -> None:
    slow = (4, 100, 10, 90)
    assert packing.misplaced(line(100, slow), ANYWHERE, HYBRID) == Misplaced(0, 80, 100)
    fast = [(0, 101, 0, 100), (3, 102, 30, 70)]
    assert packing.misplaced(line(100, slow, *fast), ANYWHERE, HYBRID) == Misplaced(0, 40, 100)


def test_a_task_that_may_not_run_there_is_where_it_belongs() -> None:
    tasks = [(0, 100, 0, 100), (1, 101, 0, 100), (4, 104, 0, 100)]
    bound = Affinity(ANYWHERE.everywhere, {pid: [(0, 1 << cpu)] for cpu, pid, *_ in tasks})
    assert packing.misplaced(line(100, *tasks), bound, HYBRID) == Misplaced(0, 0, 100)
    # One of the two on a core is set free at 30, with the fast core only.
    freed = Affinity(bound.everywhere, bound.changes | {101: [(0, 0b10), (30, 0b1110)]})
    assert packing.misplaced(line(100, *tasks), freed, HYBRID) == Misplaced(70, 70, 100)
    # The task on a slow core may change to the other slow core, which is no better.
    slow = Affinity(bound.everywhere, bound.changes | {104: [(0, 0b110000)]})
    assert packing.misplaced(line(100, *tasks), slow, HYBRID) == Misplaced(0, 0, 100)


def test_nobody_leaves_the_node_for_a_better_core() -> None:
    nodes = Topology(sockets=2, cores=2, threads=2, distances=[[10, 21], [21, 10]]).layout()
    inner = [(0, 100, 0, 100), (1, 101, 0, 100), (2, 102, 0, 40)]
    found = packing.misplaced(line(100, *inner), Affinity(0xFF, {}), nodes[:6])
    assert found == Misplaced(60, 60, 100)


def test_with_a_grace_period_only_what_lasts_counts() -> None:
    two = [(0, 100, 0, 100), (1, 101, 20, 70), (2, 102, 0, 100), (4, 104, 0, 100), (5, 105, 0, 45)]
    # From 45 on a core idles; shared since 20, to 70.
    assert packing.misplaced(line(100, *two), ANYWHERE, HYBRID, 10) == Misplaced(15, 15, 100)
    assert packing.misplaced(line(100, *two), ANYWHERE, HYBRID, 25) == Misplaced(0, 0, 100)


def test_the_best_places_are_fast_cores_then_slow_ones_then_second_threads() -> None:
    speeds = packing.ideal_speeds(HYBRID, SMT)
    assert speeds.tolist() == pytest.approx([0, 100, 200, 260, 320, 346, 372])
    box = machine.load("alderlake-8p8e")
    assert packing.ideal_speeds(box.layout(), box.clock.smt)[12] == pytest.approx(800 + 4 * 60)


def test_work_is_a_part_of_what_the_best_places_do() -> None:
    assert packing.packed(line(100), HYBRID, SMT) is None
    assert packing.packed(line(100, (0, 100, 0, 100), (2, 101, 0, 50)), HYBRID, SMT) == pytest.approx(1)
    assert packing.packed(line(100, (0, 100, 0, 100), (1, 101, 0, 100)), HYBRID, SMT) == pytest.approx(126 / 200)
    assert packing.packed(line(100, (4, 100, 0, 50), (0, 100, 50, 100)), HYBRID, SMT) == pytest.approx(80 / 100)
    # A task that waits has work too.
    waiting = line(100, (0, 100, 0, 100), (0, 101, 100, 100), waits=((101, 0, 100),))
    assert packing.packed(waiting, HYBRID, SMT) == pytest.approx(100 / 200)


@pytest.mark.parametrize(("name", "expected"), [("smp-4", False), ("alderlake-8p8e", True), ("ryzen-7950x", True)])
def test_cores_differ_or_have_threads(name: str, expected: bool) -> None:
    assert packing.differ(machine.load(name).layout()) == expected


machines = st.builds(
    reference.simulate,
    seed=st.integers(0, 2**32),
    cpus=st.just(len(HYBRID)),
    tasks=st.integers(1, 9),
    ticks=st.integers(1, 60),
    masks=st.sampled_from([None, [0b111111, 0b000011, 0b111100, 0b010001, 0b100000]]),
    lazy=st.sampled_from([0.0, 0.3, 0.9]),
)


@given(machines)
def test_every_tick_is_judged_by_who_runs_where(truth: Truth) -> None:
    line, where = built(truth), affinity.find(truth.events())
    shared = better = 0
    for running in truth.running:
        at = {cpu: truth.masks[pid] for cpu, pid in enumerate(running) if pid != IDLE}
        shared += any(_can_leave(cpu, mask, at, HYBRID, shared_only=True) for cpu, mask in at.items())
        better += any(_can_leave(cpu, mask, at, HYBRID, shared_only=False) for cpu, mask in at.items())
    found = packing.misplaced(line, where, HYBRID)
    assert found == Misplaced(shared * TICK_NS, better * TICK_NS, truth.ticks * TICK_NS)
    part = packing.packed(line, HYBRID, SMT)
    assert part is None or 0 <= part <= 1 + 1e-9


def _can_leave(cpu: int, mask: int, at: dict[int, int], layout: list[Cpu], *, shared_only: bool) -> bool:
    """Tell whether the task on a CPU has a better core that idles."""
    busy = {layout[other].core for other in at}
    shares = sum(layout[other].core == layout[cpu].core for other in at) > 1
    faster = [(core.speed > layout[cpu].speed and not shared_only) or shares for core in layout]
    return any(faster[other] and layout[other].core not in busy and mask >> other & 1 for other in range(len(layout)))
