"""Every measure against a machine whose states are known, and against closed forms."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_lab.measures import affinity, fairness, fluid, idle, latency, switches, timeline
from heddle_lab.measures.events import Kind
from heddle_lab.measures.fairness import Shares
from heddle_lab.measures.timeline import Cause, End, Timeline
from tests.measures import reference
from tests.measures.reference import TICK_NS, Truth

NESTED = [0b1111, 0b0011, 0b1100, 0b0001, 0b1000, 0b1111]
OVERLAPPING = [0b0011, 0b0110, 0b1100, 0b1111, 0b1001]

machines = st.builds(
    reference.simulate,
    seed=st.integers(0, 2**32),
    cpus=st.integers(1, 4),
    tasks=st.integers(1, 9),
    ticks=st.integers(1, 60),
    masks=st.sampled_from([None, NESTED, OVERLAPPING]),
    lazy=st.sampled_from([0.0, 0.3, 0.9]),
)


def built(truth: Truth) -> Timeline:
    return timeline.build(truth.events(), start_ns=0, end_ns=truth.ticks * TICK_NS, cpus=truth.cpus, skew_ns=0)


@given(machines)
def test_the_timeline_shows_who_ran_and_who_waited_at_every_tick(truth: Truth) -> None:
    line = built(truth)
    for tick in range(truth.ticks):
        now = tick * TICK_NS
        runs = line.runs.take((line.runs.start_ns <= now) & (line.runs.end_ns > now))
        assert dict(zip(runs.cpu.tolist(), runs.pid.tolist(), strict=True)) == dict(enumerate(truth.running[tick]))
        waits = line.waits.take((line.waits.start_ns <= now) & (line.waits.end_ns > now))
        assert sorted(waits.pid.tolist()) == sorted(truth.waiting[tick])


@given(machines)
def test_the_runs_of_a_cpu_cover_the_window_once(truth: Truth) -> None:
    line = built(truth)
    for cpu in range(truth.cpus):
        runs = line.runs.take(line.runs.cpu == cpu)
        assert runs.start_ns[0] == line.start_ns
        assert runs.end_ns[-1] == line.end_ns
        assert (runs.start_ns[1:] == runs.end_ns[:-1]).all()


@given(machines, st.integers(0, 5))
@settings(max_examples=200)
def test_wasted_idle_is_the_largest_matching_of_idle_cpus_and_waiting_tasks(truth: Truth, grace: int) -> None:
    events = truth.events()
    wasted = idle.wasted_idle(built(truth), affinity.find(events), grace * TICK_NS)
    assert wasted.wasted_ns == reference.wasted_ticks(truth, grace) * TICK_NS
    assert wasted.idle_ns == sum(row.count(0) for row in truth.running) * TICK_NS
    assert wasted.cpu_ns == truth.ticks * truth.cpus * TICK_NS
    assert 0 <= wasted.fraction <= 1


@given(machines)
def test_latencies_are_those_of_the_wakeups(truth: Truth) -> None:
    assert latency.wakeup_latencies(built(truth)).tolist() == sorted(truth.latencies)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3000))
def test_a_quantile_is_the_smallest_sample_that_enough_samples_do_not_exceed(samples: list[int]) -> None:
    found = latency.quantiles(np.sort(np.array(samples)))
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        needed = Fraction(str(part)) * len(samples)
        if len(samples) - math.ceil(needed) < 10:
            assert name not in found
            continue
        enough = [value for value in samples if sum(sample <= value for sample in samples) >= needed]
        assert found[name] == min(enough)


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (0, []),
        (19, []),
        (20, ["p50"]),
        (999, ["p50", "p90"]),
        (1000, ["p50", "p90", "p99"]),
        (10_000, [*latency.QUANTILES]),
    ],
)
def test_a_quantile_has_ten_samples_beyond_it(count: int, names: list[str]) -> None:
    assert list(latency.quantiles(np.arange(count))) == names


groupings = st.sampled_from([{}, {100: "a", 101: "b"}, {100: "a", 101: "a", 102: "b", 103: "b"}])


@given(machines, groupings)
@settings(max_examples=150)
def test_lag_is_the_distance_to_the_exact_fair_machine(truth: Truth, groups: dict[int, str]) -> None:
    group_weights = {"a": 300.0, "b": 50.0}
    group = {pid: groups.get(pid, "") for pid in truth.masks}
    ideal = reference.fluid_service(
        truth,
        {pid: Fraction(fairness.weight_of_prio(prio)) for pid, prio in truth.prios.items()},
        group,
        {"a": Fraction(300), "b": Fraction(50), "": Fraction(100)},
    )
    real = [dict.fromkeys(truth.masks, 0)]
    for running in truth.running:
        real.append({pid: done + (pid in running) for pid, done in real[-1].items()})
    found = fairness.measure(built(truth), Shares(groups=groups, group_weights=group_weights))
    lags = [[float(ideal[tick][pid] - real[tick][pid]) for tick in range(truth.ticks + 1)] for pid in truth.masks]
    assert found.max_lag_ns == pytest.approx(max(map(max, lags), default=0) * TICK_NS, abs=2)
    assert found.min_lag_ns == pytest.approx(min(map(min, lags), default=0) * TICK_NS, abs=2)
    active = {pid for _, pid, *_ in truth.spells}
    for name, lag in found.group_lag_ns.items():
        sums = [
            sum(float(ideal[tick][pid] - real[tick][pid]) for pid in active if group[pid] == name)
            for tick in range(truth.ticks + 1)
        ]
        assert lag == pytest.approx(max(sums) * TICK_NS, abs=2)


@given(
    st.floats(0.1, 64),
    st.lists(st.tuples(st.floats(0.1, 1e5), st.floats(0.1, 64)), min_size=1, max_size=20),
)
def test_water_filling_is_fair(capacity: float, demands: list[tuple[float, float]]) -> None:
    shares = fluid.water_fill(capacity, demands)
    assert sum(shares) == pytest.approx(min(capacity, sum(cap for _, cap in demands)))
    level = max(share / weight for share, (weight, _) in zip(shares, demands, strict=True))
    for share, (weight, cap) in zip(shares, demands, strict=True):
        # One that gets less per weight than another is at its cap.
        assert share <= cap * (1 + 1e-9)
        assert share / weight == pytest.approx(level, rel=1e-6) or share == pytest.approx(cap, rel=1e-6)


class Script:
    """Events written by hand; every CPU begins idle."""

    def __init__(self, cpus: int) -> None:
        self.truth = Truth(cpus, {}, {})
        self._on = [0] * cpus

    def wake(self, at: int, cpu: int, pid: int, kind: Kind = Kind.WAKING) -> None:
        self.row(at, kind, cpu, pid)

    def switch(self, at: int, cpu: int, pid: int, state: int = 1, prio: int = 120) -> None:
        self.row(at, Kind.SWITCH, cpu, pid, state, prio)
        self._on[cpu] = pid

    def row(self, at: int, kind: Kind, cpu: int, pid: int, value: int = 0, prio: int = 120) -> None:
        columns = {"time_ns": at, "cpu": cpu, "kind": int(kind), "current": self._on[cpu]}
        self.truth.rows.append(columns | {"pid": pid, "value": value, "prio": prio})

    def build(self, end: int, **options: int) -> Timeline:
        return timeline.build(self.truth.events(), start_ns=0, end_ns=end, cpus=self.truth.cpus, **options)


def test_hogs_that_alternate_lag_by_half_a_slice() -> None:
    script = Script(1)
    for pid in (1, 2):
        script.wake(0, 0, pid)
    for slice_number in range(10):
        script.switch(slice_number * 1000, 0, 1 + slice_number % 2, 0)
    found = fairness.measure(script.build(10_000))
    assert (found.max_lag_ns, found.min_lag_ns) == (500, -500)
    assert found.share_error == pytest.approx(0, abs=1e-12)


def test_a_starved_hog_lags_by_its_whole_share() -> None:
    script = Script(1)
    for pid in (1, 2):
        script.wake(0, 0, pid)
    script.switch(0, 0, 1, 0)
    found = fairness.measure(script.build(10_000))
    assert (found.max_lag_ns, found.max_lag_pid, found.min_lag_ns) == (5_000, 2, -5_000)
    assert found.share_error == pytest.approx(0.5)


def test_three_hogs_on_two_cpus_own_two_thirds_each_but_a_heavy_one_no_more_than_a_cpu() -> None:
    script = Script(2)
    for pid, prio in ((1, 120), (2, 120), (3, 120)):
        script.wake(0, 0, pid)
        if pid < 3:
            script.switch(0, pid - 1, pid, 0, prio)
    line = script.build(9_000)
    assert fairness.measure(line).max_lag_ns == 6_000
    heavy = fairness.measure(line, Shares(weights={1: 1e6}))
    assert heavy.max_lag_ns == pytest.approx(4_500)


def test_time_of_a_real_time_task_is_not_there_to_be_shared() -> None:
    script = Script(1)
    script.wake(0, 0, 1)
    script.switch(0, 0, 1, 0)
    script.switch(1_000, 0, 9, 0x100, prio=49)
    script.switch(4_000, 0, 1, 1)
    assert fairness.measure(script.build(10_000)).max_lag_ns == 0


def test_groups_share_by_weight_whatever_their_number_of_tasks() -> None:
    script = Script(1)
    for pid in (1, 2, 3):
        script.wake(0, 0, pid)
    for slice_number in range(9):
        script.switch(slice_number * 1000, 0, 1 + slice_number % 3, 0)
    shares = Shares(groups={1: "one", 2: "two", 3: "two"})
    found = fairness.measure(script.build(9_000), shares)
    assert found.group_lag_ns["one"] == 1_500  # 9000 / 2 - 3000
    assert found.share_error == pytest.approx(0.5 - 1 / 3)


def test_a_task_put_aside_waits_from_the_switch_on() -> None:
    script = Script(1)
    script.wake(0, 0, 1)
    script.switch(10, 0, 1, 0)
    script.switch(100, 0, 2, 0x100)
    script.switch(300, 0, 1, 1)
    line = script.build(400)
    waits = [(int(w), int(c)) for w, c in zip(line.waits.end_ns - line.waits.start_ns, line.waits.cause, strict=True)]
    assert (200, Cause.PREEMPTED) in waits
    assert (10, Cause.WOKEN) in waits
    assert line.tasks().end.tolist() == [End.PREEMPTED, End.BLOCKED, End.OPEN]


def test_a_task_never_seen_before_its_first_run_was_waiting_since_the_begin() -> None:
    script = Script(1)
    script.wake(500, 0, 7)
    script.switch(50_000, 0, 1, 0)
    line = script.build(60_000)
    mine = line.waits.take(line.waits.pid == 1)
    assert (mine.start_ns.tolist(), mine.end_ns.tolist(), mine.cause.tolist()) == ([0], [50_000], [Cause.OPEN])


def test_stamps_that_contradict_cause_and_effect_by_a_quantum_make_no_long_waits() -> None:
    script = Script(2)
    script.switch(1_000, 1, 1, 0)  # CPU 1's clock lags: the wakeup that caused this is stamped later
    script.wake(4_000, 0, 1)
    script.switch(90_000, 1, 0, 1)
    script.wake(89_000, 0, 1)  # the waker's clock lags: the switch that made room is stamped later
    script.switch(95_000, 1, 1, 0)
    line = script.build(100_000)
    mine = line.waits.take(line.waits.pid == 1)
    assert [(s, e) for s, e in zip(mine.start_ns.tolist(), mine.end_ns.tolist(), strict=True)] == [(90_000, 95_000)]
    assert line.instant == 1
    assert latency.wakeup_latencies(line).tolist() == [0, 5_000]


def test_a_wakeup_that_led_to_a_short_run_does_not_lead_to_the_next_one_as_well() -> None:
    script = Script(2)
    script.wake(50_000, 0, 1)
    script.switch(55_000, 1, 1, 0)
    script.switch(60_000, 1, 0, 1)  # within the skew of the wakeup
    script.switch(900_000, 1, 1, 0)
    script.wake(903_000, 0, 1)  # caused this run; its stamp is late
    script.switch(960_000, 1, 0, 1)
    line = script.build(1_000_000)
    mine = line.waits.take(line.waits.pid == 1)
    assert [(s, e) for s, e in zip(mine.start_ns.tolist(), mine.end_ns.tolist(), strict=True)] == [(50_000, 55_000)]
    assert line.instant == 1


def test_migrations_count_runs_by_distance() -> None:
    script = Script(8)
    at = 0
    where = {cpu: switches.Place(core=cpu // 2, llc=cpu // 4, node=cpu // 8) for cpu in range(8)} | {
        7: switches.Place(core=3, llc=1, node=1)
    }
    for cpu in (0, 1, 3, 4, 7, 7, 0):
        at += 100
        script.wake(at, cpu, 1)
        script.switch(at + 10, cpu, 1, 0)
        script.switch(at + 50, cpu, 0, 1)
    line = script.build(1_000)
    assert switches.migrations(line, where) == {"smt": 1, "core": 1, "llc": 1, "node": 2}
    counts = switches.count(script.truth.events(), line)
    assert (counts.switches, counts.idle_entries, counts.preemptions) == (14, 7, 0)


def test_ipis_are_reschedules_and_function_calls() -> None:
    assert switches.ipis({"RES": 5, "CAL": 7, "TLB": 3, "LOC": 100}) == 12


def test_an_empty_trace_measures_nothing() -> None:
    line = Script(2).build(1_000)
    assert idle.wasted_idle(line, affinity.find(Script(2).truth.events())).wasted_ns == 0
    assert fairness.measure(line).max_lag_ns == 0
    assert latency.wakeup_latencies(line).tolist() == []


def test_a_child_inherits_affinity_and_a_kernel_threads_name_tells_it() -> None:
    script = Script(4)
    script.truth.masks = {1: 0b0110}
    script.row(5, Kind.AFFINITY, 0, 1, 0)
    script.switch(10, 1, 1)
    script.row(20, Kind.FORK, 1, 2)
    events = script.truth.events()
    events.comms.update({7: "kworker/3:1H-kblockd", 8: "kworker/u8:1", 9: "ksoftirqd/2"})
    found = affinity.find(events)
    assert [found.at(pid, 30) for pid in (1, 2, 7, 8, 9)] == [0b0110, 0b0110, 0b1000, 0b1111, 0b0100]
    assert found.at(1, 4) == 0b1111
