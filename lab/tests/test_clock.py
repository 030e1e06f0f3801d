"""The virtual clock: exact to the instruction in a ROM, and as a Linux guest sees it.

Times are virtual ns throughout; a CPU of the default speed executes one instruction per ns.
"""

from collections.abc import Callable
from functools import cache
from statistics import mean

import pytest

from clock import guests
from clock.guests import Run
from heddle_lab.machine import Caches, Clock, CoreClass, Costs, IdleState, Topology

QUANTUM = Clock().quantum_ns
WAKE_NS = 100
"""for a vCPU to wake another one and for that one to read its clock: some instructions"""
SLEEP_NS = 10_000
"""the kernel's way from a timer to the task that sleeps"""
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
        assert max(means) - min(means) < WAKE_NS
        assert all(0 < low <= high < WAKE_NS for _, _, low, high, _ in wakes)

    def test_an_interrupt_reaches_a_busy_cpu_within_a_quantum_and_never_early(self) -> None:
        for _, _, low, high, _ in rom().facts("interrupt"):
            assert low > 0
            assert high < QUANTUM + 2 * TB

    def test_each_of_two_senders_and_a_timer_is_on_time(self) -> None:
        """What one of them lets in is not what another has yet to send."""
        for _, _, low, high, _ in rom().facts("senders"):
            assert low > 0
            assert high < QUANTUM + 4 * TB

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

    def test_siblings_share_their_core_also_when_a_timer_ends_the_rest_of_one(self) -> None:
        run = guests.rom(Topology(cores=2, threads=2), Clock(smt=SMT))
        unpaid = QUANTUM * (100 - SMT) / SMT
        for *_, spent in run.facts("interrupted"):
            assert spent == pytest.approx(COMPUTE_INSNS * 100 / SMT, abs=unpaid + 4 * TB)

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


FINE = Clock(quantum_ns=1000)
ENTRIES = 100
"""how often the ROM enters the kernel in each way"""
LINE = 50
HANDOFFS = 100
"""how often the ROM's CPU 0 writes what its CPU 1 reads"""
LINE_NS = 2_000_000
"""for how long the ROM's CPUs count up"""


@cache
def lines(cpus: int, line_ns: int | None, locked_ns: int = 0) -> list[tuple[int, ...]]:
    """Return CPU, increments of a shared word and of one of its own, and the time of reads of a line at rest."""
    costs = Costs(line_core_ns=line_ns, locked_ns=locked_ns)
    return guests.rom(Topology(cores=cpus), FINE, costs=costs, only="lines").facts("lines")


@cache
def entries(costs: Costs, clock: Clock = FINE) -> Run:
    return guests.rom(CORES, clock, costs=costs, only="entry")


class TestCosts:
    """What the hardware takes beside instructions, each by itself."""

    @pytest.mark.parametrize("cpus", [2, 4, 8, 16, 32, 64])
    def test_a_word_that_all_count_up_moves_once_for_each_increment(self, cpus: int) -> None:
        counts = [shared for _, shared, *_ in lines(cpus, LINE)]
        assert sum(counts) == pytest.approx(LINE_NS / LINE, rel=0.1)
        assert sum(counts) < 1.1 * cpus * min(counts)  # one begins before the line is found contended

    @pytest.mark.parametrize("cpus", [2, 64])
    def test_words_of_their_own_lines_are_as_fast_as_ever(self, cpus: int) -> None:
        for (_, _, tracked, _), (_, _, free, _) in zip(lines(cpus, LINE), lines(cpus, None), strict=True):
            assert tracked == pytest.approx(free, rel=0.01)

    def test_a_line_that_none_writes_is_fetched_once(self) -> None:
        fetched = [ns - free for (*_, ns), (*_, free) in zip(lines(8, LINE), lines(8, None), strict=True)]
        assert fetched[0] == 0  # it wrote the line before
        assert min(fetched[1:]) >= LINE
        assert max(fetched) <= 7 * LINE  # it comes to one after the other

    def test_a_word_that_one_writes_and_another_reads_moves_both_ways(self) -> None:
        tracked, free = (
            guests.rom(Topology(cores=2), FINE, costs=Costs(line_core_ns=ns), only="handoff").facts("handoff")
            for ns in (LINE, None)
        )
        paid = [ns - base for (_, ns), (_, base) in zip(tracked, free, strict=True)]
        assert paid == [(HANDOFFS - 1) * LINE, HANDOFFS * LINE]  # nobody has it before the first write

    def test_a_locked_instruction_takes_its_time_on_any_line(self) -> None:
        (_, _, locked, _), *_ = lines(8, LINE, 5)
        (_, _, free, _), *_ = lines(8, LINE)
        assert LINE_NS / locked - LINE_NS / free == pytest.approx(5, abs=0.01)

    @pytest.mark.parametrize(
        ("which", "costs"),
        [
            (0, Costs(syscall_ns=70)),
            (1, Costs(exception_ns=70)),
            (2, Costs(cr3_ns=70)),
            (3, Costs(interrupt_ns=70)),
            (3, Costs(ipi_send_ns=70)),
        ],
    )
    def test_each_way_into_the_kernel_has_its_price(self, which: int, costs: Costs) -> None:
        for (_, *dear), (_, *free) in zip(entries(costs).facts("entry"), entries(Costs()).facts("entry"), strict=True):
            assert [a - b for a, b in zip(dear, free, strict=True)] == [70 * ENTRIES * (i == which) for i in range(4)]

    def test_kernel_and_user_code_have_speeds_of_their_own(self) -> None:
        for _, kernel, user in entries(Costs(), Clock(quantum_ns=1000, speed=250, kernel_speed=40)).facts("mode"):
            assert kernel == pytest.approx(250_000, abs=TB)
            assert user == pytest.approx(40_000, abs=TB)

    def test_an_interrupt_takes_time_to_be_sent_to_arrive_and_to_wake_a_cpu_up(self) -> None:
        """CPUs are halted for 30 to 50 us here."""
        states = ((0, 1), (20, 3), (100, 50))
        idle = tuple(IdleState(residency_us=residency, exit_us=exit_us) for residency, exit_us in states)
        costs = Costs(ipi_send_ns=100, ipi_deliver_ns=200, interrupt_ns=40, idle=idle)
        for name in ("wake", "wake_loaded"):
            for (*_, mean_ns), (*_, free_ns) in zip(
                all_costs(costs).facts(name), all_costs(None).facts(name), strict=True
            ):
                assert mean_ns - free_ns == pytest.approx(100 + 200 + 40 + 3000, abs=2)

    def test_mwait_ends_with_a_write_and_without_an_interrupt(self) -> None:
        costs = Costs(line_core_ns=LINE, mwait=True, idle=(IdleState(residency_us=0, exit_us=1),))
        run = guests.rom(CORES, FINE, costs=costs, only="mwait")
        for *_, low, high, _ in run.facts("mwait"):
            assert 1000 + LINE <= low <= high <= 1000 + 3 * LINE + 2 * TB
        assert sum(cpu.events[-1] for cpu in run.cpus) == 2  # INIT and start-up of the others

    def test_hlt_goes_on_after_a_write_to_a_line_that_was_once_watched(self) -> None:
        costs = Costs(line_core_ns=LINE, mwait=True)
        [(halted,)] = guests.rom(CORES, FINE, costs=costs, only="watch").facts("watch")
        assert 20_000 <= halted <= 20_000 + 3 * LINE + 2 * TB  # the handler uses lines that CPU 0 has written


@cache
def all_costs(costs: Costs | None) -> Run:
    return guests.rom(CORES, FINE, costs=costs)


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
        assert 0 < average < SLEEP_NS
        assert longest < SLEEP_NS + 100_000
