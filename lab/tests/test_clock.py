"""The virtual clock: exact to the instruction in a ROM, and as a Linux guest sees it.

Times are virtual ns throughout; a CPU of the default speed executes one instruction per ns.
"""

from collections.abc import Callable
from functools import cache
from statistics import mean

import pytest

from clock import guests
from clock.guests import Run
from heddle_lab.machine import Caches, Clock, CoreClass, Topology

QUANTUM = Clock().quantum_ns
CORES = Topology(cores=4)
SPIN_INSNS = 2_000_000
"""what each CPU executes in the ROM's first scenario"""
COMPUTE_INSNS = 1_000_000
"""what one COMPUTE stands for where it is interrupted or cold"""
TB = 30
"""the longest translation block of the ROM's loops and interrupt paths: how much a turn can overrun"""

EIGHT = Topology(cores=8)
TWO_NODES = Topology(sockets=2, dies=2, cores=1, threads=2, distances=[[10, 20], [20, 10]])
"""8 CPUs: 1 shares the core of 0, 2 is in another LLC of its node, 4 in another node"""
SMT = 60
"""per cent; the quantum is a multiple of what two siblings execute in it"""
CACHES = Caches(footprint_kib=256, misses=4, core_ns=10, llc_ns=40, node_ns=100)
ONE_LLC = CACHES.model_copy(update={"llc_ns": None, "node_ns": None})
MS = 1_000_000


@cache
def rom(quantum: int = QUANTUM) -> Run:
    return guests.rom(CORES, Clock(quantum_ns=quantum))


@cache
def linux(command: str, quantum: int = QUANTUM) -> Run:
    return guests.linux(command, EIGHT, Clock(quantum_ns=quantum))


@cache
def bounce(to: int, caches: bool) -> Run:
    return guests.linux(f"bounce,0,{to},500", TWO_NODES, caches=CACHES if caches else None)


def elapsed(run: Run) -> int:
    """Return the time from the first spinner's start to the last one's end."""
    spins = run.facts("spin")
    return max(end for _, _, end in spins) - min(start for _, start, _ in spins)


class TestRom:
    """Nothing runs but the scenario, so every number is known in advance."""

    def test_cpus_run_in_parallel(self) -> None:
        for _, spent in rom().facts("spin"):
            assert SPIN_INSNS <= spent <= SPIN_INSNS + TB

    def test_each_core_has_the_speed_of_its_class(self) -> None:
        speeds = (100, 250, 60, 33)
        classes = [CoreClass(name=str(speed), cores=1, threads=1, speed=speed) for speed in speeds]
        run = guests.rom(CORES.model_copy(update={"classes": classes}))
        for cpu, spent in run.facts("spin"):
            assert spent == pytest.approx(SPIN_INSNS * 100 / speeds[cpu], abs=TB * 100 / speeds[cpu])

    @pytest.mark.parametrize("factor", [SMT, 40])
    def test_siblings_that_both_execute_have_the_factor_of_their_speed(self, factor: int) -> None:
        run = guests.rom(Topology(cores=2, threads=2), Clock(smt=factor))
        unpaid = QUANTUM * (100 - factor) / factor  # a round's share is paid at its end
        for _, spent in run.facts("spin"):
            assert spent == pytest.approx(SPIN_INSNS * 100 / factor, abs=unpaid + TB)

    @pytest.mark.parametrize("scenario", ["wake", "wake_loaded"])
    def test_waking_a_halted_cpu_takes_as_long_from_and_to_any(self, scenario: str) -> None:
        wakes = rom().facts(scenario)
        assert len(wakes) * 100 >= 1000
        means = [average for *_, average in wakes]
        assert max(means) - min(means) < QUANTUM / 100
        assert all(0 < low <= high < QUANTUM / 100 for _, _, low, high, _ in wakes)

    def test_an_interrupt_reaches_a_busy_cpu_within_a_quantum_and_never_early(self) -> None:
        for _, _, low, high, _ in rom().facts("interrupt"):
            assert low > 0
            assert high < QUANTUM + 2 * TB

    def test_interrupts_are_no_faster_between_some_cpus(self) -> None:
        by_order: dict[bool, list[int]] = {True: [], False: []}
        for waker, wakee, *_, average in rom().facts("interrupt"):
            by_order[waker < wakee].append(average)
        assert mean(by_order[True]) == pytest.approx(mean(by_order[False]), abs=QUANTUM / 20)

    def test_timers_expire_on_time(self) -> None:
        for _, _, low, high, _ in rom().facts("timer"):
            assert 0 < low <= high <= TB

    def test_a_spinning_cpu_sees_a_flag_within_a_quantum(self) -> None:
        for *_, low, high, _ in rom().facts("pause"):
            assert low > -QUANTUM - TB
            assert high < QUANTUM + TB

    def test_a_contended_lock_favours_no_cpu(self) -> None:
        taken = [count for _, count in rom(QUANTUM // 4).facts("lock")]
        assert max(taken) < min(taken) * 1.05

    def test_no_cpus_clock_goes_back(self) -> None:
        assert rom().facts("backwards") == [(0,)]


class TestCompute:
    """One instruction stands for many: it takes their time to the instruction, wherever the quanta end."""

    def test_it_takes_the_time_of_its_instructions(self) -> None:
        beside = {spent - insns for _, insns, spent, _ in rom().facts("compute")}
        assert len(beside) == 1
        assert 0 < min(beside) <= TB

    def test_it_executes_all_of_them_before_it_goes_on(self) -> None:
        assert {left for *_, left in rom().facts("compute")} == {0}
        assert all(cpu.computed > SPIN_INSNS for cpu in rom().cpus)

    def test_it_has_the_speed_of_its_core(self) -> None:
        speeds = (100, 250, 60, 33)
        classes = [CoreClass(name=str(speed), cores=1, threads=1, speed=speed) for speed in speeds]
        run = guests.rom(CORES.model_copy(update={"classes": classes}))
        for cpu, insns, spent, _ in run.facts("compute"):
            assert -1 <= spent - insns * 100 / speeds[cpu] <= TB * 100 / speeds[cpu]

    @pytest.mark.parametrize("factor", [SMT, 40])
    def test_siblings_that_both_execute_it_have_the_factor_of_their_speed(self, factor: int) -> None:
        run = guests.rom(Topology(cores=2, threads=2), Clock(smt=factor))
        unpaid = QUANTUM * (100 - factor) / factor  # a round's share is paid at its end
        for _, insns, spent, _ in run.facts("compute"):
            assert spent == pytest.approx(insns * 100 / factor, abs=unpaid + TB)

    def test_an_interrupt_is_taken_on_time_and_finds_the_rest_in_the_register(self) -> None:
        for _, delay, late, left, _ in rom().facts("interrupted"):
            assert 0 < late <= TB
            assert 0 <= delay - (COMPUTE_INSNS - left) <= TB

    def test_the_rest_is_executed_after_an_interrupt(self) -> None:
        handler = {spent - COMPUTE_INSNS for *_, spent in rom().facts("interrupted")}
        assert len(handler) == 1
        assert 0 < min(handler) <= 4 * TB

    def test_a_task_that_moved_pays_for_its_cold_caches_first(self) -> None:
        cost, _, _ = CACHES.costs()
        warm = [spent for _, spent in rom().facts("move")]
        cold = [spent for _, spent in guests.rom(CORES, caches=ONE_LLC).facts("move")]
        assert warm == [warm[0]] * CORES.cpus
        assert cold == [warm[0]] + [warm[0] + cost] * (CORES.cpus - 1)

    def test_switched_off_it_is_a_nop_that_leaves_the_register_alone(self) -> None:
        run = guests.rom(CORES, compute=False)
        for _, insns, spent, left in run.facts("compute"):
            assert left == insns
            assert 0 < spent <= TB
        assert {cpu.computed for cpu in run.cpus} == {0}


class TestLinux:
    """A kernel's timer ticks and interrupts take part, so times are compared with a margin for them."""

    def test_spinners_on_as_many_cpus_finish_together(self) -> None:
        alone = elapsed(linux(f"spin,1,1,{100 * MS}"))
        assert alone == pytest.approx(100 * MS, rel=0.01)
        assert elapsed(linux(f"spin,8,8,{100 * MS}")) == pytest.approx(alone, rel=0.01)

    def test_twice_the_spinners_take_twice_as_long(self) -> None:
        assert elapsed(linux(f"spin,16,8,{50 * MS}")) == pytest.approx(100 * MS, rel=0.01)

    def test_idle_cpus_cost_next_to_nothing(self) -> None:
        boot, idle, busy = linux("idle,1"), linux(f"idle,{100 * MS}"), linux(f"spin,8,8,{100 * MS}")

        def cost(run: Run, count: Callable[[Run], int]) -> int:
            return count(run) - count(boot)

        for count in (lambda run: run.insns, lambda run: run.turns):
            assert cost(busy, count) > 0
            assert cost(idle, count) < 0.05 * cost(busy, count)

    def test_a_run_repeats_to_the_last_counter(self) -> None:
        first, second = (guests.linux("wake,4,50,1", EIGHT) for _ in range(2))
        assert first.counters == second.counters
        assert first.text == second.text

    def test_another_seed_is_another_run(self) -> None:
        assert linux("wake,4,50,1").counters != linux("wake,4,50,2").counters

    def test_compute_bound_results_do_not_depend_on_the_quantum(self) -> None:
        command = f"spin,12,8,{20 * MS}"
        times = [elapsed(linux(command, quantum)) for quantum in (QUANTUM, QUANTUM // 2, QUANTUM // 4)]
        assert max(times) < 1.02 * min(times)

    def test_only_a_sibling_that_executes_slows_down(self) -> None:
        clock = Clock(smt=SMT)
        for cpus, threads, share in ((2, 1, 100), (2, 2, SMT), (8, 8, SMT)):
            run = guests.linux(f"spin,{threads},{cpus},{20 * MS}", TWO_NODES, clock)
            assert elapsed(run) == pytest.approx(20 * MS * 100 / share, rel=0.02)

    @pytest.mark.parametrize(("to", "distance"), [(1, 0), (2, 2), (4, 3)])
    def test_a_task_that_moves_loses_the_stated_cost(self, to: int, distance: int) -> None:
        cost = (0, *CACHES.costs())[distance]
        (_, warm), (_, cold) = (bounce(to, caches).facts("bounce")[0] for caches in (False, True))
        assert cold - warm == pytest.approx(cost, abs=0.03 * (warm + cost))
        for cpu in (0, to):
            assert bounce(to, caches=True).cpus[cpu].moves[distance] >= 250

    def test_every_move_is_charged_once(self) -> None:
        for cpu in bounce(4, caches=True).cpus:
            assert cpu.stalled_ns == sum(n * cost for n, cost in zip(cpu.moves, (0, *CACHES.costs()), strict=True))

    def test_a_footprint_of_nothing_changes_nothing(self) -> None:
        free = CACHES.model_copy(update={"footprint_kib": 0})
        run = guests.linux("bounce,0,4,500", TWO_NODES, caches=free)
        assert run.text == bounce(4, caches=False).text

    def test_the_whole_model_repeats_to_the_last_counter(self) -> None:
        first, second = (guests.linux("wake,8,20,1", TWO_NODES, Clock(smt=SMT), CACHES) for _ in range(2))
        assert first.counters == second.counters

    def test_short_sleeps_end_on_time(self) -> None:
        [(average, longest)] = linux("timer,1000,3000").facts("timer")
        assert 0 < average < QUANTUM
        assert longest < QUANTUM + 100_000
