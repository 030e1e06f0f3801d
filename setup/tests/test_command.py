"""The command line: what fails is one line, and what runs is ended."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from setup import __main__ as command
from setup import plan, process

ROOT = Path(command.__file__).parents[1]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "HEDDLE_CACHE": str(tmp_path / "file")}
    done = subprocess.run(
        [sys.executable, "-m", "setup", "host"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"setup: {tmp_path}/file/lock: Not a directory\n")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (None, "setup: No space left on device\n"),
        ("/cache/x", "setup: /cache/x: No space left on device\n"),
    ],
)
def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str | None,
    line: str,
) -> None:
    """The error of a write to an open file does not name the file."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)

    monkeypatch.setattr(plan, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["setup", "host"])
    assert command.main() == 1
    assert capsys.readouterr().err == line


def test_an_interrupt_ends_all_that_may_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program is another user's, one has ended: the rest is ended all the same."""
    answers = {1: PermissionError, 2: ProcessLookupError, 3: None}
    asked = set()

    def killpg(group: int, _: int) -> None:
        asked.add(group)
        if answer := answers[group]:
            raise answer

    class Program:
        def __init__(self, pid: int) -> None:
            self.pid = pid

    monkeypatch.setattr(os, "killpg", killpg)
    monkeypatch.setattr(process, "_running", {Program(pid) for pid in answers})
    monkeypatch.setattr(process, "_stopping", threading.Event())
    process.stop_all()
    assert asked == set(answers)
