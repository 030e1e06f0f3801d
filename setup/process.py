"""Running programs: output to a log, progress from it, one line when it fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from .report import Progress, SetupError

SAY_EVERY_S = 20.0

_running: set[subprocess.Popen[str]] = set()
_lock = threading.Lock()
_stopping = threading.Event()


def output(
    argv: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
) -> str | None:
    """What ARGV prints on stdout, with ENV set and in CWD, or None if it is missing or fails."""
    words = [str(a) for a in argv]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def stop_all() -> None:
    """End every program that `run` has under way, and let none start after."""
    _stopping.set()
    with _lock:
        for process in _running:
            # It has ended, keeps the terminal (and gets Ctrl-C there), or is another user's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)


def run(
    argv: Sequence[str | Path],
    *,
    log: Path,
    stage: str,
    progress: Progress,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    show: str | None = None,
    terminal: bool = False,
) -> None:
    """Run ARGV with its output appended to LOG; a failure is a SetupError with its last line.

    Every SAY_EVERY_S seconds the newest line that matches the regular expression
    SHOW is reported under STAGE's name (its group 1 where there is one). With
    TERMINAL it keeps set-up's terminal, from which sudo reads a password.
    """
    words = [str(a) for a in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"\n+ {' '.join(words)}\n")
        file.flush()
        tell = _teller(stage, progress, show)
        code, tail = _stream(words, cwd, env, file, tell, terminal=terminal)
    if _stopping.is_set():
        raise SetupError("stopped")
    if code != 0:
        last = next((line for line in reversed(tail) if line.strip()), "no output")
        what = " ".join([Path(words[0]).name, *words[1:3]])
        raise SetupError(f"{what} failed ({code}): {last.strip()[:300]}; all of it in {log}")


def _stream(
    words: list[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    log: TextIO,
    tell: Callable[[str], None],
    *,
    terminal: bool,
) -> tuple[int, deque[str]]:
    """Run WORDS, copy each line of output to LOG and to TELL; exit code and last lines."""
    tail: deque[str] = deque(maxlen=15)
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # So that `stop_all` ends all of it; what keeps the terminal gets Ctrl-C there.
            start_new_session=not terminal,
        )
    except OSError as error:
        return 127, deque([str(error)])
    with _lock:
        _running.add(process)
    try:
        for line in process.stdout or ():
            log.write(line)
            tail.append(line)
            tell(line)
        return process.wait(), tail
    finally:
        with _lock:
            _running.discard(process)


def _teller(stage: str, progress: Progress, show: str | None) -> Callable[[str], None]:
    """A function that reports lines matching SHOW, at most one every SAY_EVERY_S seconds."""
    pattern = re.compile(show) if show else None
    last = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if pattern is None or time.monotonic() - last < SAY_EVERY_S:
            return
        if found := pattern.search(line):
            last = time.monotonic()
            progress.say(stage, found.group(1) if pattern.groups else found.group(0))

    return tell
