"""One name, one thing: two things of one name are never merged into one row."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle_lab import identity, resultfile
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from tests.conftest import bzimage
from tests.emulator import Emulator
from tests.test_bad_input import MACHINE, WORKLOAD
from tests.test_report import cells


@pytest.fixture
def emulator(cache: Path) -> Emulator:
    return Emulator(cache)


def two(folder: Path, name: str, first: str, second: str) -> tuple[str, str]:
    """Write a file of one name into two folders."""
    paths = [folder / side / name for side in ("left", "right")]
    for path, text in zip(paths, (first, second), strict=True):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return str(paths[0]), str(paths[1])


def kernel(folder: Path, tail: bytes, config: str = "CONFIG_HZ=250\n") -> str:
    folder.mkdir(parents=True)
    (folder / "bzImage").write_bytes(bzimage("6.99.0-mine") + tail)
    (folder / "config").write_text(config)
    return str(folder / "bzImage")


def tree(folder: Path, tail: bytes) -> str:
    """Make what a kernel's build leaves in its tree."""
    built = folder / "arch/x86/boot"
    built.mkdir(parents=True)
    (built / "bzImage").write_bytes(bzimage("6.99.0-mine") + tail)
    (folder / ".config").write_text("CONFIG_HZ=250\n")
    return str(folder)


def run(emulator: Emulator, *more: str) -> "subprocess.CompletedProcess[str]":
    out = emulator.cache / "out"
    command = [
        sys.executable,
        "-m",
        "heddle_lab",
        "run",
        "--cold",
        "--sched",
        "eevdf",
        "--seeds",
        "2",
        "--out",
        str(out),
        *more,
    ]
    return subprocess.run(
        command, env=emulator.environment(), cwd=emulator.cache, capture_output=True, text=True, check=False
    )


def refused(emulator: Emulator, *more: str) -> str:
    done = run(emulator, *more)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert emulator.boots() == []
    return done.stderr


def test_two_kernels_of_one_release(emulator: Emulator) -> None:
    one, other = kernel(emulator.cache / "one", b"-O2"), kernel(emulator.cache / "other", b"-O3")
    error = refused(emulator, "--workload", "hackbench", "--kernel", one, "--kernel", other)
    assert f"two different kernels are called '6.99.0-mine': {one} and {other}; build one with another" in error


def test_one_kernel_with_two_configurations(emulator: Emulator) -> None:
    one, other = kernel(emulator.cache / "a", b""), kernel(emulator.cache / "b", b"", "CONFIG_HZ=1000\n")
    error = refused(emulator, "--workload", "hackbench", "--kernel", one, "--kernel", other)
    assert "two different kernels are called" in error


def test_two_machines_of_one_name(emulator: Emulator) -> None:
    left, right = two(emulator.cache, "m.toml", MACHINE, MACHINE.replace("cores = 2", "cores = 4"))
    error = refused(emulator, "--workload", "hackbench", "--machine", left, "--machine", right)
    assert f"two different machines are called 'm': {left} and {right}; give one of the files another" in error
    shipped = emulator.cache / "smp-4.toml"
    shipped.write_text(MACHINE.replace('"m"', '"smp-4"'))
    error = refused(emulator, "--workload", "hackbench", "--machine", "smp-4", "--machine", str(shipped))
    assert f"'smp-4': smp-4 and {shipped};" in error


@pytest.mark.parametrize("change", [('["hackbench"]', '["hackbench", "-p"]'), ('unit = "ns"', 'unit = ""')])
def test_two_workloads_of_one_name(emulator: Emulator, change: tuple[str, str]) -> None:
    left, right = two(emulator.cache, "w.toml", WORKLOAD, WORKLOAD.replace(*change))
    error = refused(emulator, "--workload", left, "--workload", right)
    assert f"two different workloads are called 'w': {left} and {right}; give one of the files another" in error


def test_two_schedulers_of_one_name(emulator: Emulator) -> None:
    load = ("--workload", "hackbench")
    error = refused(emulator, *load, "--sched", "x=hackbench 1", "--sched", "x=hackbench 2")
    assert "two different variants are called 'x': x=hackbench 1 and x=hackbench 2; give one of them" in error


def test_two_variants_of_one_name(emulator: Emulator) -> None:
    load = ("--workload", "hackbench")
    for first, second in (
        (["--variant", "x:feature=A"], ["--variant", "x:feature=B"]),
        (["--sched", "x=hackbench 1"], ["--variant", "x:env=A=1"]),
    ):
        error = refused(emulator, *load, *first, *second)
        assert f"two different variants are called 'x': {first[1]} and {second[1]}; give one of them" in error
    assert "variant 'x' is named twice" in refused(emulator, *load, *["--variant", "x:env=A=1"] * 2)


def test_two_kernel_trees_of_one_release(emulator: Emulator) -> None:
    one, other = tree(emulator.cache / "one", b"-O2"), tree(emulator.cache / "other", b"-O3")
    sides = ("--variant", f"a:kernel={one}", "--variant", f"b:kernel={other}")
    error = refused(emulator, "--workload", "hackbench", *sides)
    assert f"two different kernels are called '6.99.0-mine': {one} and {other}; build one with another" in error
    error = refused(emulator, "--workload", "hackbench", "--kernel", one, *sides[2:])
    assert f"are called '6.99.0-mine': {one} and {other}; " in error


def test_what_is_given_twice_counts_once(emulator: Emulator) -> None:
    """Else each seed would give two pairs, and five seeds the evidence of ten."""
    left, right = two(emulator.cache, "m.toml", MACHINE, MACHINE.replace('source = ""', 'source = "copied"'))
    one, other = kernel(emulator.cache / "a", b""), kernel(emulator.cache / "b", b"")
    twice = ["--workload", "hackbench"] * 2 + ["--machine", left, "--machine", right, "--kernel", one]
    assert run(emulator, *twice, "--kernel", other).returncode == 0
    assert [cell.seed for cell in resultfile.read(emulator.cache / "out")] == [1, 2]


def changed(run: list[CellResult], change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[CellResult]:
    return [cell.model_copy(update={"provenance": change(cell.provenance)}) for cell in run]


def with_input(**more: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda provenance: provenance | {"inputs": provenance["inputs"] | more}


def with_metric(**more: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda provenance: (
        provenance | {"metrics": {name: about | more for name, about in provenance["metrics"].items()}}
    )


JOB = {"steps": [{"name": "go", "argv": ["hackbench"]}]}
OTHER_JOB = {"steps": [{"name": "go", "argv": ["hackbench", "-p"]}]}

DIFFERENCES = {
    "machine 'smp-4'": (with_input(), with_input(machine={"clock": {"quantum_ns": 1000}})),
    "kernel '7.3'": (with_input(), with_input(kernel="ab")),
    "workload 'hackbench'": (with_input(job=JOB), with_input(job=OTHER_JOB)),
    "metrics of workload": (with_metric(sha256="1"), with_metric(sha256="2")),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_two_runs_of_different_things(what: str) -> None:
    before, after = (changed(cells(), change) for change in DIFFERENCES[what])
    with pytest.raises(HeddleError) as caught:
        identity.two_runs(before, after, ("out/a", "out/b"))
    error = str(caught.value)
    assert what.removeprefix("metrics of ") in error
    assert "stands for two different things: out/a (sha256 " in error
    assert "and out/b (sha256 " in error
    with pytest.raises(HeddleError):
        identity.one_run([*before, *after], "out/both")


def test_two_runs_may_differ_in_a_variant_but_one_may_not() -> None:
    before, after = cells(), changed(cells(), with_input(scheduler={"argv": ["x"], "sha256": "dd"}))
    identity.two_runs(before, after, ("a", "b"))
    with pytest.raises(HeddleError, match="variant 'eevdf' stands for two different things"):
        identity.one_run([*before, *after], "both")


def test_a_cell_that_is_there_twice_counts_once_unless_it_differs() -> None:
    run = cells()
    assert identity.one_run([*run, *run], "x") == run
    again = [cell.model_copy(update={"metrics": cell.metrics | {"wall_s": 99.0}}) for cell in run]
    assert identity.one_run([*run, *again], "x") == run
    slower = run[0].model_copy(update={"metrics": run[0].metrics | {"elapsed_ns": 1}})
    with pytest.raises(HeddleError, match="x: two different results of one cell, hackbench smp-4 "):
        identity.one_run([*run, slower], "x")
