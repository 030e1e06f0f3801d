"""The lines that move, by name, in guests of which it is known what they share."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle_lab import memorymap, transfers, vm
from heddle_lab.cli import cli
from heddle_lab.transfers import Line
from tests.vm.cells import cell_of

pytestmark = [pytest.mark.vm, pytest.mark.every_kernel]

PAIRS = ["pingpong", "--pairs", "4", "--count", "2000"]
ONE_QUEUE = "one=scx_heddle --runq global --locking grq"


def the(lines: list[Line], part: str, name: str) -> Line:
    """Return the most expensive line of a thing."""
    return next(line for line in lines if line.part == part and line.name.startswith(name))


def test_a_guest_does_not_notice_that_its_lines_are_listed(kernel: str, tmp_path: Path) -> None:
    guest = transfers.guest_of(cell_of(kernel, PAIRS, "scx_heddle"))
    plain = vm.run(guest).check()
    listed = [vm.run(guest, transfers=tmp_path / name).check() for name in ("one", "two")]
    for results in listed:
        assert results.records == plain.records
        assert results.clock == plain.clock
        assert results.trace_text == plain.trace_text
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_list_is_what_the_counters_count(kernel: str, tmp_path: Path) -> None:
    file = tmp_path / "transfers"
    clock = vm.run(cell_of(kernel, PAIRS).guest(), transfers=file).check().clock
    # The counters begin anew at each mark, and this is the last one.
    listed = transfers.read_section(file, vm.Mark.STARTED, 0)
    assert sum(fetch.transfers for fetch in listed) == sum(sum(cpu["transfers"][1:]) for cpu in clock["cpus"]) > 0


def test_the_lock_of_a_queue_that_all_cpus_share_is_found(kernel: str) -> None:
    found = transfers.measure(cell_of(kernel, PAIRS, ONE_QUEUE))
    bpf = [line for line in found.lines if line.part == memorymap.BPF]
    assert bpf[0].name == "grqs: lock"
    assert bpf[0].readers + bpf[0].writers >= 4
    assert any("bpf_spin_lock" in function for function in bpf[0].functions)
    assert found.lines.index(bpf[0]) < 20


def test_data_of_the_kernel_of_a_cpu_and_of_a_program_is_named(kernel: str) -> None:
    found = transfers.measure(cell_of(kernel, PAIRS, "scx_heddle")).lines
    queues = the(found, memorymap.PER_CPU, "runqueues")
    assert queues.lines == queues.writers == 4
    assert any("__lock" in line.name for line in found if line.name.startswith("runqueues"))
    assert the(found, memorymap.BPF, "bpf_bpf.bss").ns
    assert the(found, memorymap.SYMBOLS, "").ns
    task = the(found, memorymap.SLAB, "task_struct")
    assert task.lines >= 8
    assert ": " in task.name
    nameless = [line.ns for line in found if line.name.startswith("memory ")]
    assert sum(nameless) < 0.1 * sum(line.ns for line in found)


@pytest.fixture
def listing(kernel: str) -> str:
    options = ["--workload", "perf-pipe", "--param", "loops=200", "--sched", "eevdf", "--kernel", kernel]
    result = CliRunner().invoke(cli, ["profile", "--lines", *options, "--most", "3"])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_sums_and_lines(kernel: str, listing: str) -> None:
    title, *_ = listing.splitlines()
    assert title == (
        f"smp-4, Linux {kernel}, perf-pipe loops=200 depth=0, seed 1, eevdf: cache lines that move, per context switch"
    )
    assert all(f"\n {name} " in listing for name in ("all", memorymap.PER_CPU, memorymap.SLAB))
