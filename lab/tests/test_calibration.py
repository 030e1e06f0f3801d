"""`heddle calibrate`: what the program measures, and how it gets into a machine file."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle_lab import machine, paths
from heddle_lab.cli import cli
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import calibrated, calibration, fit
from heddle_lab.hardware.calibration import Costs, Measured, Output, Sample
from heddle_lab.machine import Machine

ALONE = ["turn", "add", "locked_add", "syscall", "fault", "switch_process", "switch_thread", "timer_slack"]

REAL = {"turn": 0.25, "add": 0.3, "locked_add": 5.2, "timer_slack": 9000.0, "line_core": 41.0}
"""ns; what no guest is needed for"""

FITTED = {"syscall": 120.0, "fault": 600.0, "switch_process": 2200.0, "switch_thread": 2000.0, "interrupt": 2400.0}
WAKES = {"wake_0": 3000.0, "wake_20": 3100.0, "wake_100": 4500.0, "wake_1000": 22000.0}


def output(values: dict[str, float], rounds: int = 1, cpus: int = 4) -> Output:
    measures = [
        Sample(name=name, ns=ns * (1 + 0.1 * n), low=ns * 0.9, high=ns * 1.3, least=ns * 0.8, median=ns, samples=160)
        for n in range(rounds)
        for name, ns in values.items()
    ]
    return Output(version=1, cpus=cpus, load_average=0.5, measures=measures, stolen=0.0)


def guest(box: Machine) -> Costs:
    """A guest whose kernel executes some instructions for an operation, 1 ns each; its machine's costs come on top."""
    cost, times = box.costs, box.costs.slowdown
    system_call = 200 + times * cost.syscall_ns
    switch = 4000 + 2 * times * cost.syscall_ns
    arrival = times * (cost.ipi_send_ns + cost.ipi_deliver_ns + cost.interrupt_ns)
    found = {
        "syscall": system_call,
        "fault": 900 + times * cost.exception_ns,
        "switch_thread": switch,
        "switch_process": switch + times * cost.cr3_ns + 200,
        "interrupt": 800 + arrival,
    }
    for name in WAKES:
        idle_us = int(name.removeprefix("wake_"))
        state = [state for state in cost.idle if state.residency_us <= idle_us][-1]
        found[name] = 1500 + arrival + times * 1000 * state.exit_us
    return {name: Measured(ns=ns, low=ns, high=ns, rounds=1) for name, ns in found.items()}


def file_of(name: str) -> str:
    return (paths.MACHINES / f"{name}.toml").read_text()


def test_the_program_measures_this_machine() -> None:
    done = subprocess.run([paths.calibrate(), "2", "2"], capture_output=True, text=True, check=True, timeout=300)
    found = calibration.costs(calibration.parse(done.stdout, "here"))
    assert found.keys() >= set(ALONE)
    for cost in found.values():
        assert cost.rounds == 2
        assert cost.low <= cost.high
        assert cost.ns > 0
    assert found["locked_add"].ns > found["add"].ns
    assert found["switch_thread"].ns > found["syscall"].ns


@pytest.mark.parametrize("words", [["0"], ["1", "0"], ["text"], ["1", "2", "3"]])
def test_the_program_refuses_what_it_does_not_know(words: list[str]) -> None:
    done = subprocess.run([paths.calibrate(), *words], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: heddle-calibrate")


def test_the_quickest_round_but_one_counts_and_the_interval_is_that_of_all() -> None:
    cost = calibration.costs(output({"syscall": 100.0}, rounds=3))["syscall"]
    assert (cost.ns, cost.low, cost.high, cost.rounds) == (pytest.approx(110), 90, 130, 3)


def test_fitted_costs_give_in_a_guest_what_was_measured() -> None:
    measured = calibration.costs(output(REAL | FITTED | WAKES))
    box = machine.load("smp-4")
    found, seen = fit.fit(fit.small(box), measured, guest)
    for name in (*FITTED, "wake_100", "wake_1000"):
        assert seen[name].ns / found.slowdown == pytest.approx(FITTED.get(name, WAKES.get(name)), rel=0.02), name
    parts = (box.costs.ipi_send_ns, box.costs.ipi_deliver_ns, box.costs.interrupt_ns)
    fitted = (found.ipi_send_ns, found.ipi_deliver_ns, found.interrupt_ns)
    assert [round(b / a, 1) for a, b in zip(parts, fitted, strict=True)] == [round(fitted[0] / parts[0], 1)] * 3


def test_the_file_says_what_was_measured_and_keeps_the_rest() -> None:
    text = file_of("smp-4")
    changed, rows = calibrated.apply(text, "smp-4.toml", output(REAL | FITTED | WAKES), guest)
    lines = {line.partition(" ")[0]: line for line in changed.splitlines() if " = " in line}
    assert lines["line_core_ns"] == "line_core_ns = 41 # measured: 36.9 to 53.3 ns in 1 round"
    assert lines["locked_ns"].startswith("locked_ns = 5 ")
    assert "# fitted: syscall takes 120 ns (108 to 156 ns in 1 round), in a guest 120" in lines["syscall_ns"]
    assert "costs by heddle calibrate, at a load average of 0.5, 0.0% stolen" in lines["source"]
    assert lines["mwait"] in text
    assert "cores = 4" in changed
    assert ["fault", "600", "540 … 780"] in [row[:3] for row in rows]


def test_another_machines_output_goes_into_its_own_file_only(tmp_path: Path) -> None:
    path = tmp_path / "output.json"
    path.write_text(output(REAL | FITTED, cpus=16).model_dump_json())
    (tmp_path / "box.toml").write_text(file_of("smp-4"))
    alone = CliRunner().invoke(cli, ["calibrate", "--from", str(path)], standalone_mode=False)
    assert "give that machine's file by --machine FILE.toml" in str(alone.exception)
    command = ["calibrate", "--from", str(path), "--machine", str(tmp_path / "box.toml")]
    other = CliRunner().invoke(cli, command, standalone_mode=False)
    assert "a machine of 4 CPUs, and the costs are those of one with 16 CPUs" in str(other.exception)
    assert (tmp_path / "box.toml").read_text() == file_of("smp-4")


def test_the_program_can_be_taken_elsewhere(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["calibrate", "--export", str(tmp_path / "there")], standalone_mode=False)
    assert result.exception is None
    program, text = tmp_path / "there/heddle-calibrate", tmp_path / "there/README"
    assert program.stat().st_mode & 0o111
    assert program.read_bytes() == paths.calibrate().read_bytes()
    assert "--from output.json" in text.read_text()


BROKEN = {
    "no JSON": ("text", "not the output of heddle-calibrate"),
    "another": (json.dumps({"version": 2}), "version: "),
    "cut short": (output(REAL).model_dump_json()[:100], "not the output of heddle-calibrate"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_the_program_did_not_print_is_one_line(fault: str, tmp_path: Path) -> None:
    content, complaint = BROKEN[fault]
    (tmp_path / "output.json").write_text(content)
    with pytest.raises(HeddleError) as error:
        calibration.read(tmp_path / "output.json")
    assert complaint in str(error.value)
    assert "output.json" in str(error.value)
    assert "\n" not in str(error.value)
