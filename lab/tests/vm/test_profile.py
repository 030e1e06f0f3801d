"""Counted instructions against what must have been executed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle_lab import profile, vm
from heddle_lab.cli import cli
from heddle_lab.errors import HeddleError
from tests.vm.cells import cell_of

pytestmark = pytest.mark.vm

PAIR = ["pingpong", "--cpus", "1", "--count", "2000"]


def test_a_guest_does_not_notice_that_it_is_profiled(kernel: str, tmp_path: Path) -> None:
    guest = cell_of(kernel, PAIR, "scx_heddle").guest()
    plain = vm.run(guest).check()
    counted = vm.run(guest, counts=tmp_path / "counts").check()
    assert counted.records == plain.records
    assert counted.console == plain.console
    # Nobody has marked anything.
    assert list(profile.read_counts(tmp_path / "counts")) == [(0, 0, 1)]


def test_switches_of_a_pair_are_found_in_the_functions(kernel: str) -> None:
    eevdf, heddle = (profile.measure(cell_of(kernel, PAIR, sched)) for sched in ("eevdf", "scx_heddle"))
    for one in (eevdf, heddle):
        assert one.switches == pytest.approx(4000, rel=0.1)
        assert one.functions["finish_task_switch"].calls == pytest.approx(one.switches, rel=0.05)
    assert eevdf.total(profile.BPF) == 0
    for callback in ("running", "stopping"):
        assert heddle.functions[f"heddle_{callback} [bpf]"].calls == pytest.approx(heddle.switches, rel=0.05)
    assert 0 < heddle.total(profile.BPF) < heddle.total(profile.KERNEL)


def test_what_a_program_computes_is_counted_to_the_instruction(kernel: str) -> None:
    insns = 200_000
    argv = ["schbench", "--load", "0.5", "--cpus-online", "4", "--request-insns", str(insns), "--think-us", "100"]
    few, many = (profile.measure(cell_of(kernel, [*argv, "--requests", str(number)])) for number in (200, 600))
    # The program's start is in both; to ask and to wait for a request takes some hundred instructions.
    assert many.total(profile.USER) - few.total(profile.USER) == pytest.approx(400 * insns, rel=0.01)


def test_a_step_without_an_end_is_refused(kernel: str) -> None:
    cell = cell_of(kernel, PAIR)
    background = [step | {"background": True} for step in cell.workload.steps]
    cell = cell.model_copy(update={"workload": cell.workload.model_copy(update={"steps": background})})
    with pytest.raises(HeddleError, match="runs in the background"):
        profile.measure(cell)


def test_the_table_goes_into_a_page(kernel: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- profile of perf-pipe:begin -->\n<!-- profile of perf-pipe:end -->\nafter\n")
    options = ["--workload", "perf-pipe", "--param", "loops=200", "--sched", "eevdf", "--kernel", kernel]
    result = CliRunner().invoke(cli, ["profile", *options, "--most", "3", "--into", str(page)])
    assert result.exit_code == 0, result.output
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert f"smp-4, Linux {kernel}, perf-pipe loops=200 depth=0, seed 1: instructions per context switch:" in lines
    table = [line for line in lines if line.startswith("| ")]
    assert table[0] == "| function | eevdf | calls, eevdf |"
    assert [line.split(" | ")[0] for line in table[2:6]] == ["| all", "| kernel", "| BPF programs", "| user space"]
    assert len(table) == 2 + 4 + 3
    assert all(line.split(" | ")[0].strip("| ") in result.output for line in table[2:])
