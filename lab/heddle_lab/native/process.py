"""Programs of a job: each in a session of its own below the root of the userland, with its output in files."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from heddle_lab.hardware.seen import cpu_list
from heddle_lab.job import Step
from heddle_lab.native.cgroups import PROCESSES

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "linux",
}
"""as in a guest"""

_OUTPUT_CAP = 64 << 10
"""bytes of each stream that are reported: the last ones"""

_POLICIES = {"other": os.SCHED_OTHER, "batch": os.SCHED_BATCH, "idle": os.SCHED_IDLE, "fifo": os.SCHED_FIFO}


class Process:
    """A program that was started."""

    def __init__(
        self, step: Step, argv: list[str], seed: int, root: Path, outputs: Path, group: Path | None = None
    ) -> None:
        """Start a program.

        Args:
            step: of the job, for the name, the environment and what the program may use.
            argv: the program with its arguments.
            seed: of the job.
            root: of the userland.
            outputs: folder for its output.
            group: folder of its control group; none: that of this process.

        Raises:
            OSError: it cannot be started.
        """
        name = "".join(c if c.isalnum() else "_" for c in step.name)
        self.step = step
        self._files = [outputs / f"{name}.{suffix}" for suffix in ("out", "err")]
        stdin = outputs / f"{name}.in"
        stdin.write_text(step.stdin or "")
        with stdin.open("rb") as source, self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self._child = subprocess.Popen(
                argv,
                stdin=source if step.stdin is not None else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**ENVIRONMENT, "HEDDLE_SEED": str(seed), **step.env},
                start_new_session=True,
                preexec_fn=_entry(step, root, group),
            )
        self.started_ns = time.monotonic_ns()
        self._fd = os.pidfd_open(self._child.pid)
        self.ended_ns: int | None = None

    def wait(self, until_ns: int) -> bool:
        """Sleep until the program ends or a time of the monotonic clock comes; tell whether it has ended."""
        if self.ended_ns is None:
            left_ms = max(0, until_ns - time.monotonic_ns()) / 1e6
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if not poll.poll(left_ms):
                return False
            self.ended_ns = time.monotonic_ns()
            self._child.wait()
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def close(self) -> dict[str, object]:
        """End what is left of the session, and return what the program's record says."""
        timed_out = not self.wait(0)
        while members := _session(self._child.pid):
            for member in members:
                os.kill(member, signal.SIGKILL)
            self.wait(time.monotonic_ns() + 1_000_000_000)
        self.wait(time.monotonic_ns() + 1_000_000_000)
        os.close(self._fd)
        code = self._child.returncode
        return {
            "name": self.step.name,
            "exit": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "elapsed_ns": (self.ended_ns or time.monotonic_ns()) - self.started_ns,
            "stdout": _tail(self._files[0]),
            "stderr": _tail(self._files[1]),
            "timed_out": timed_out,
        }


def _entry(step: Step, root: Path, group: Path | None) -> Callable[[], None]:
    """Return what the child does before it becomes the program."""
    cpus = cpu_list(step.cpus) if step.cpus else None
    policy = _POLICIES[step.policy]

    def enter() -> None:
        if group:
            (group / PROCESSES).write_text("0")
        os.chroot(root)
        os.chdir("/")
        if cpus:
            os.sched_setaffinity(0, cpus)
        os.sched_setscheduler(0, policy, os.sched_param(1 if policy == os.SCHED_FIFO else 0))
        os.setpriority(os.PRIO_PROCESS, 0, step.nice)
        if step.uid:
            os.setgroups([])
            os.setgid(step.uid)
            os.setuid(step.uid)

    return enter


def _session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                # proc_pid_stat(5): PID (NAME) STATE PPID PGRP SESSION ...; the name may hold anything.
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) == leader and state not in "ZX":
                members.append(int(folder.name))
    return members


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT_CAP))
        return file.read().decode(errors="replace")
