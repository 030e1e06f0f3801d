"""`heddle doctor` and `heddle manual`."""

import re
import signal
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from heddle_lab import doctor, paths
from heddle_lab.cli import cli


def program(folder: Path, script: str) -> Path:
    file = folder / "scx_heddle"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.mark.usefixtures("cache")
def test_a_complete_machine_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROGRAM", program(tmp_path, "echo 'ok       root'"))
    monkeypatch.setattr(doctor, "MEMORY_MIB", 1)
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert (result.return_value, "missing" in result.output) == (0, False), result.output
    assert "ok       root" in result.output


@pytest.mark.usefixtures("cache")
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROGRAM", program(tmp_path, "echo 'missing  the types: boot another'; exit 1"))
    monkeypatch.setattr(doctor, "MEMORY_MIB", 1 << 40)
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 1
    assert "missing  the types: boot another" in result.output
    assert "MiB are free" in result.output


NOT_ROOT = "missing  root: use sudo\nmissing  capabilities: loading needs CAP_BPF"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("said", "status"),
    [
        (NOT_ROOT, 0),
        (f"{NOT_ROOT}\nmissing  the types: boot another", 1),
        ("ok       root\nmissing  capabilities: loading needs CAP_BPF", 1),
    ],
)
def test_root_is_a_remark_where_it_explains_all_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int
) -> None:
    monkeypatch.setattr(doctor, "PROGRAM", program(tmp_path, f"echo '{said}'; exit 1"))
    monkeypatch.setattr(doctor, "MEMORY_MIB", 1)
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == status
    assert ("remark   root: use sudo" in result.output) == ("missing  root" in said)
    assert ("missing  " in result.output) == (status == 1)


def test_what_comes_with_root_is_named_as_the_loader_names_it() -> None:
    source = (paths.REPOSITORY / "scheduler/src/preflight.rs").read_text()
    assert set(re.findall(r'(?:what: |met\(\s*)"(.*?)"', source)) >= doctor.BY_ROOT


def test_an_empty_cache_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "PROGRAM", tmp_path / "absent")
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 1
    assert result.output.count("missing  ") == 5


SOCKET = Path("/var/run/scx/root/stats")


@pytest.mark.skipif(SOCKET.exists(), reason="a scheduler runs here")
def test_the_monitor_of_nothing_names_the_socket_and_waits_without_colours() -> None:
    argv = [paths.REPOSITORY / "bin/scx_heddle", "--monitor", "0.2"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as monitor:
        assert monitor.stderr is not None
        line = monitor.stderr.readline()
        assert monitor.poll() is None
        monitor.send_signal(signal.SIGINT)
    assert line == f"[INFO] waiting for scx_heddle: start it, nothing answers at {SOCKET}\n"
    assert monitor.returncode == 0


def test_every_command_has_a_page_without_faults(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["manual", str(tmp_path)], standalone_mode=False)
    assert result.exception is None
    assert isinstance(cli, click.Group)
    pages = {page.stem for page in tmp_path.glob("*.1")}
    assert pages == {"heddle", *(f"heddle-{name}" for name in cli.commands)}
    for page in tmp_path.glob("*.1"):
        argv = ["man", "--warnings", "--local-file", str(page)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stderr == ""
    assert "_HEDDLE_COMPLETE=bash_complete" in (tmp_path / "heddle.bash").read_text()
