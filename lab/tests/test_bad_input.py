"""What can be wrong outside of the laboratory: one line that names it, exit status 1, finished cells kept."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle_lab import cli, experiment, machine, paths, resultfile, scheduler, tomlfile, vm, workload
from heddle_lab.errors import HeddleError
from tests.emulator import Emulator

Broken = Callable[[], object]


@pytest.fixture
def emulator(cache: Path) -> Emulator:
    return Emulator(cache)


FAULTS = {
    "panic": (
        "echo 'Kernel panic - not syncing: Attempted to kill init!' > $console; exit 0",
        "the guest's kernel panicked before the agent was ready: Attempted to kill init!",
    ),
    "scheduler": (
        """echo '{"event":"scheduler","state":"failed","name":"mine","exit":1,"stderr":"Error: no BTF"}' """
        """> $folder/results.jsonl; exit 0""",
        "scheduler 'mine' failed to attach: Error: no BTF",
    ),
    "error": (
        """echo '{"event":"error","step":"hackbench","message":"no such program","virtual_ns":1}' """
        """> $folder/results.jsonl; exit 0""",
        "step 'hackbench': no such program",
    ),
    "metric": (
        """sed '/hackbench/d' RECORDS > $folder/results.jsonl; exit 0""",
        "step 'hackbench' did not finish: the job has no such step",
    ),
    "crash": ("echo 'out of luck' >&2; exit 3", "QEMU died before the agent was ready (status 3); last output: out of"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cell_that_fails_is_one_line_and_the_others_are_kept(emulator: Emulator, fault: str) -> None:
    shell, complaint = FAULTS[fault]
    emulator.on_seed(2, shell)
    done = emulator.run(3)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("heddle: ")]
    assert len(lines) == 1
    assert complaint in lines[0]
    assert "seed 2" in lines[0]
    assert "Traceback" not in done.stderr
    assert emulator.cells() == (3 if fault == "metric" else 2)
    assert [cell.seed for cell in resultfile.read(emulator.cache / "out")] == [1, 3]


def test_a_full_disk_is_one_line_and_keeps_what_was_stored(emulator: Emulator) -> None:
    """A limit on the size of files stands for the full disk; the kernel's answer differs in one word."""
    assert emulator.run(2).returncode == 0
    done = emulator.run(3, limit_bytes=300)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("heddle: ")]
    assert len(lines) == 1
    assert lines[0].startswith("heddle: cannot write ")
    assert "Traceback" not in done.stderr
    assert emulator.cells() == 2


def test_a_disk_that_fills_while_a_guest_reports(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.on_seed(1, "exit 0")
    machines = [str(emulator.machine)]
    wanted = experiment.Overrides(machines=machines, workloads=["hackbench"], schedulers=["eevdf"], seeds=1)
    cell = wanted.apply(None).cells()[0]
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 1000, 1000, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    error = vm.run(cell.guest(), cold=True).error
    assert error is not None
    assert error.startswith("the disk is full: ")


def test_a_disk_that_is_full_before_a_console_opens(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/dev/full stands for the disk: the layer that is copied goes there."""
    monkeypatch.setattr(tempfile, "tempdir", str(cache))
    monkeypatch.setattr(vm, "_INITRD", "/dev/full")
    monkeypatch.setattr("sys.argv", ["heddle", "shell"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "heddle: cannot run a guest: No space left on device (TMPDIR)\n"


@pytest.mark.parametrize("command", ["workloads", "machines"])
def test_output_that_cannot_be_written(command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(paths.LAB)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "heddle_lab", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "heddle: No space left on device\n")


def toml(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


MACHINE = 'name = "m"\nsummary = ""\nsource = ""\nmemory_mib = 512\n[topology]\ncores = 2\n'
WORKLOAD = """name = "w"
summary = ""
source = ""
[[steps]]
name = "go"
argv = ["hackbench"]
[[metrics]]
name = "time"
step = "go"
unit = "ns"
better = "lower"
"""
EXPERIMENT = 'name = "e"\nsummary = ""\nmachines = ["smp-4"]\nkernels = ["7.3"]\nschedulers = ["eevdf"]\n'


@pytest.mark.parametrize(
    ("load", "text", "complaint"),
    [
        (
            machine.load,
            MACHINE + "[clock]\nquantum_us = 10\n",
            "clock.quantum_us: unknown key; did you mean 'quantum_ns'?",
        ),
        (
            machine.load,
            MACHINE + '[clock]\nquantum_ns = "10 us"\n',
            "clock.quantum_ns: Input should be a valid integer",
        ),
        (machine.load, MACHINE + "colour = 1\n", "topology.colour: unknown key; known: sockets, dies, cores, threads"),
        (machine.load, MACHINE.replace("cores = 2", "cores = 0"), "topology.cores: Input should be greater than"),
        (machine.load, MACHINE + "[clock\n", "Expected ']'"),
        (workload.load, WORKLOAD.replace('"ns"', '"us"'), "metrics.0: metric 'time': unit 'us': a time is in ns"),
        (workload.load, WORKLOAD + "colour = 1\n", "metrics.0.colour: unknown key; known: name, step"),
        (workload.load, WORKLOAD.replace('step = "go"', 'step = "gone"'), "names no step of this workload: 'gone'"),
        (experiment.load, EXPERIMENT + "workload = []\n", "workload: unknown key; did you mean 'workloads'?"),
        (experiment.load, EXPERIMENT + "workloads = []\n", "workloads: List should have at least 1 item"),
    ],
)
def test_wrong_files_are_named_with_the_key(
    tmp_path: Path, load: Callable[[str], object], text: str, complaint: str
) -> None:
    path = toml(tmp_path / "mine.toml", text)
    with pytest.raises(HeddleError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("machines", "['nosuch']", "machines: unknown machine 'nosuch'; known: "),
        ("kernels", "['5.4']", "kernels: unknown kernel '5.4'; known: 7.3"),
        ("schedulers", "['cfs']", "schedulers: unknown scheduler 'cfs'; known: eevdf"),
        ("schedulers", "['eevdf', 'eevdf']", "schedulers: variant 'eevdf' is named twice"),
        ("workloads", "[{ name = 'nosuch' }]", "workloads: unknown workload 'nosuch'; known: "),
        (
            "workloads",
            "[{ name = 'hackbench', params = { lod = 1.0 } }]",
            "workloads: workload 'hackbench' has no parameter 'lod'; known: load, loops, groups",
        ),
        (
            "workloads",
            "[{ name = 'hackbench', params = { load = '1.25 tasks' } }]",
            "workloads: workload 'hackbench': parameter 'load' is a number (tasks per CPU), not '1.25 tasks'",
        ),
    ],
)
def test_wrong_names_in_an_experiment_are_named_with_its_file(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: str,
    complaint: str,
) -> None:
    fields = {"machines": "['smp-4']", "kernels": "['7.3']", "schedulers": "['eevdf']"}
    fields |= {"workloads": "[{ name = 'hackbench' }]", field: value}
    path = toml(cache / "mine.toml", 'name = "e"\nsummary = ""\n' + "".join(f"{k} = {v}\n" for k, v in fields.items()))
    monkeypatch.setattr("sys.argv", ["heddle", "run", path])
    with pytest.raises(SystemExit):
        cli.main()
    err = capsys.readouterr().err
    assert err.startswith(f"heddle: {path}: {complaint}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--for-ms", "nan", "'nan' is not a valid number of milliseconds."),
        ("--for-ms", "inf", "'inf' is not a valid number of milliseconds."),
        ("--for-ms", "1e305", "'1e305' is not a valid number of milliseconds."),
        ("--for-ms", "0", "0.0 is not in the range x>=1e-06."),
        ("--for-ms", "1e-9", "1e-09 is not in the range x>=1e-06."),
        ("--for-ms", "-1", "-1.0 is not in the range x>=1e-06."),
        ("--for-ms", "x", "'x' is not a valid number of milliseconds."),
        ("--from-ms", "nan", "'nan' is not a valid number of milliseconds."),
        ("--from-ms", "inf", "'inf' is not a valid number of milliseconds."),
        ("--from-ms", "-inf", "-inf is not in the range x>=0."),
    ],
)
def test_an_interval_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str, complaint: str
) -> None:
    argv = ["heddle", "timeline", "/nonexistent", "--sched", "a", "--workload", "b", option, value]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"heddle: Invalid value for '{option}': {complaint}\n"


def test_what_the_command_line_replaces_is_not_blamed_on_the_file(cache: Path) -> None:
    path = toml(cache / "mine.toml", EXPERIMENT + '[[workloads]]\nname = "hackbench"\n')
    wrong = experiment.Overrides(machines=["nosuch"])
    with pytest.raises(HeddleError, match=r"^unknown machine 'nosuch'"):
        wrong.apply(experiment.load(path)).cells(wrong.origins(path))


def test_a_program_that_the_image_lacks_is_named_before_anything_runs(cache: Path, tmp_path: Path) -> None:
    assert cache
    path = toml(tmp_path / "mine.toml", WORKLOAD.replace('"hackbench"', '"hackbanch"'))
    wanted = experiment.Overrides(workloads=[path], schedulers=["eevdf"]).apply(None)
    with pytest.raises(HeddleError, match=r"workload 'w': step 'go': argv: no program 'hackbanch' in the guest image"):
        wanted.cells()


@pytest.mark.parametrize(
    ("text", "proposal"),
    [
        ("scx_heddle --slice-us 1", "'mine=scx_heddle --slice-us 1'"),
        ("scx_heddle --slice-us=1", "'mine=scx_heddle --slice-us=1'"),
        ("scx_bpfland verbose", "'mine=scx_bpfland verbose'"),
        ("./scx_mine", "mine=./scx_mine"),
        ("/opt/scx_mine --level=3", "'mine=/opt/scx_mine --level=3'"),
    ],
)
def test_a_command_without_a_name_is_told_to_take_one(text: str, proposal: str) -> None:
    with pytest.raises(HeddleError) as caught:
        scheduler.parse(text)
    assert str(caught.value) == f"unknown scheduler '{text}'; a command needs a name before it: --sched {proposal}"


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (b"root:x:0:0::/root:/bin/sh\n", 0o644, "is not executable; name a program, or run chmod +x"),
        (b"root:x:0:0::/root:/bin/sh\n", 0o755, "is no program: it is not an ELF file, and no script"),
        (b"", 0o755, "is no program"),
        (b"#!/usr/bin/python9\n", 0o755, "is a script for '/usr/bin/python9', which the guest image lacks"),
    ],
)
def test_what_cannot_start_in_a_guest_is_refused_before_one_boots(
    emulator: Emulator, content: bytes, mode: int, complaint: str
) -> None:
    program = emulator.cache / "passwd"
    program.write_bytes(content)
    program.chmod(mode)
    done = emulator.run(5, "--sched", f"x={program}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"heddle: scheduler 'x': {program} {complaint}")
    assert done.stderr.count("\n") == 1
    assert emulator.boots() == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--slize-us 1", "unexpected argument '--slize-us' found; a similar argument exists: '--slice-us'; `bin/"),
        ("--slice-us 1", "invalid value '1' for '--slice-us <US>': 1 is not in 100..=1000000; `bin/"),
        ("--slice-us", "a value is required for '--slice-us <US>' but none was supplied; `bin/"),
    ],
)
def test_a_wrong_option_of_scx_heddle_is_refused_before_a_guest_boots(
    emulator: Emulator, options: str, complaint: str
) -> None:
    done = emulator.run(2, "--sched", f"x=scx_heddle {options}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"heddle: scheduler 'x': {complaint}")
    assert done.stderr.count("\n") == 1
    assert emulator.boots() == []


def test_right_options_of_scx_heddle_are_taken() -> None:
    scheduler.parse("x=scx_heddle --slice-us 500 --runq global --stats 1").check_options()


def test_other_programs_are_not_started_here(tmp_path: Path) -> None:
    program = tmp_path / "scx_heddle"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 2\n")
    program.chmod(0o755)
    scheduler.parse(f"x={program} --slize-us 1").check_options()
    assert not (tmp_path / "started").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(emulator: Emulator) -> None:
    done = emulator.run(1, "--out", "/proc/x")
    complaint = "cannot write to the folder /proc/x: No such file or directory; name another by --out"
    assert (done.returncode, done.stderr) == (1, f"heddle: {complaint}\n")
    assert emulator.boots() == []


def test_all_missing_keys_are_named(tmp_path: Path) -> None:
    path = toml(tmp_path / "mine.toml", 'name = "m"\n[topology]\n')
    with pytest.raises(HeddleError) as caught:
        machine.load(path)
    assert str(caught.value) == f"{path}: missing: summary, source, memory_mib, topology.cores"
    toml(tmp_path / "mine.toml", 'name = "m"\nmemory_mib = 1\nsumary = ""\n')
    with pytest.raises(HeddleError) as caught:
        machine.load(path)
    mended = "sumary: unknown key; did you mean 'summary'? (and 1 more)"
    assert str(caught.value) == f"{path}: {mended}; missing: summary, source, topology"


@pytest.mark.parametrize(
    ("load", "kind"), [(machine.load, "machine"), (workload.load, "workload"), (experiment.load, "experiment")]
)
def test_a_file_of_another_name_is_told_to_end_in_toml(
    tmp_path: Path, load: Callable[[str], object], kind: str
) -> None:
    path = toml(tmp_path / "README.md", MACHINE)
    with pytest.raises(HeddleError) as caught:
        load(path)
    wanted = f"{path}: no {kind} of this name is shipped, and the name of a file must end in .toml"
    assert str(caught.value) == wanted


def test_every_shipped_file_is_right() -> None:
    for folder, load in (("machines", machine.load), ("workloads", workload.load), ("experiments", experiment.load)):
        for name in tomlfile.names(Path(machine.__file__).parents[1] / folder):
            load(name)
