"""`heddle doctor` and `heddle manual`."""

import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from heddle_lab import doctor
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
    monkeypatch.setattr(doctor, "PROGRAM", program(tmp_path, "echo 'missing  root: use sudo'; exit 1"))
    monkeypatch.setattr(doctor, "MEMORY_MIB", 1 << 40)
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 1
    assert "missing  root: use sudo" in result.output
    assert "MiB are free" in result.output


def test_an_empty_cache_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "PROGRAM", tmp_path / "absent")
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 1
    assert result.output.count("missing  ") == 5


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
