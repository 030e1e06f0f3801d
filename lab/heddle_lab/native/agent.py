"""Carries out one job in namespaces of its own: `python3 -m heddle_lab.native.agent FOLDER`.

FOLDER holds `task.json` (a `Task`), and gets `results.jsonl`, the records that the guest's agent would write.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from heddle_lab.errors import HeddleError
from heddle_lab.hardware import sysfs
from heddle_lab.job import CgroupSet, Job, KillStep, Read, Sleep, Step, WaitStep
from heddle_lab.native import counters, tree
from heddle_lab.native.cgroups import Groups
from heddle_lab.native.conditions import EVENT, Watch
from heddle_lab.native.process import Process
from heddle_lab.native.scheduler import Attached, NotAttachedError
from heddle_lab.tomlfile import Model

TASK, RESULTS, FILES = "task.json", "results.jsonl", "files"

_SETTLE_NS = 1_000_000_000
"""how long a scheduler is attached before the first step"""

_ATTACH_NS = 10_000_000_000
"""how long it may take to attach"""


class Task(Model):
    """What the agent is given."""

    job: Job
    tree: Path
    """the userland; files below `FILES` are added to it"""
    group: str
    """the control group below which those of the job are; the program that starts the agent removes it"""


class _StepError(HeddleError):
    """A step that ends the job."""

    def __init__(self, step: str | None, message: str) -> None:
        super().__init__(message)
        self.step = step


class _Run:
    """One job."""

    def __init__(self, task: Task, root: Path, folder: Path) -> None:
        self._job = job = task.job
        self._groups = Groups(task.group)
        self._root = root
        self._outputs = folder
        self._out = (folder / RESULTS).open("a", encoding="utf-8")
        self._deadline_ns = time.monotonic_ns() + job.timeout_ns
        self._background: dict[str, Process] = {}
        self._scheduler: Attached | None = None

    def emit(self, event: str, **fields: Any) -> None:
        """Write a record."""
        record = {"virtual_ns": time.monotonic_ns(), "event": event, **fields}
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()

    def carry_out(self) -> None:
        """Run the job to its end, whatever happens."""
        watch = Watch()
        try:
            self.emit("ready", kernel=os.uname().release, cpus=os.cpu_count(), topology=_topology())
            if self._job.scheduler:
                self._start_scheduler()
            for step in self._job.steps:
                self._carry_out(step)
        except NotAttachedError as error:
            self.emit(**error.record)
        except _StepError as error:
            self.emit("error", step=error.step, message=str(error), console="")
        finally:
            for process in self._background.values():
                self.emit("step", **process.close())
            if self._scheduler:
                self.emit(**self._scheduler.stop())
            self.emit(EVENT, **watch.end().model_dump())
            self.emit("done")

    def _start_scheduler(self) -> None:
        command = self._job.scheduler
        if command is None:
            raise _StepError(None, "no scheduler")
        self._scheduler = Attached(command, self._root, self._outputs, time.monotonic_ns() + _ATTACH_NS)
        self.emit(**self._scheduler.record)
        time.sleep(_SETTLE_NS / 1e9)

    def _carry_out(self, step: Step) -> None:
        try:
            if step.argv is None:
                self._act(step)
            elif step.background:
                self._background[step.name] = self._start(step, step.argv)
            else:
                self._run_program(step, step.argv)
        except OSError as error:
            raise _StepError(step.name, f"{error.strerror}: {error.filename or ''}".rstrip(": ")) from error
        if self._scheduler and self._scheduler.lost:
            self.emit(**self._scheduler.stop())
            self._scheduler = None
        if time.monotonic_ns() >= self._deadline_ns:
            raise _StepError(step.name, f"the job's time is over: {self._job.timeout_ns} ns")

    def _start(self, step: Step, argv: list[str]) -> Process:
        group = self._groups.path(step.cgroup) if step.cgroup else None
        return Process(step, argv, self._job.seed, self._root, self._outputs, group)

    def _until(self, step: Step) -> int:
        return min(time.monotonic_ns() + step.timeout_ns, self._deadline_ns)

    def _run_program(self, step: Step, argv: list[str]) -> None:
        before = counters.read()
        process = self._start(step, argv)
        process.wait(self._until(step))
        moved = counters.since(before, counters.read())
        self._close(process, counters=moved)

    def _close(self, process: Process, **more: Any) -> None:
        """Report a program that has ended or is to end; its end may end the job."""
        record = process.close() | more
        self.emit("step", **record)
        step = process.step
        if step.expect_exit is None:
            return
        said = str(record["stderr"]).strip().splitlines()[-1:]
        detail = f": {said[0]}" if said else ""
        if record["timed_out"]:
            raise _StepError(step.name, f"timed out after {record['elapsed_ns']} ns")
        if record["signal"] is not None:
            raise _StepError(step.name, f"was killed by signal {record['signal']}{detail}")
        if record["exit"] != step.expect_exit:
            raise _StepError(step.name, f"exited with {record['exit']}, not {step.expect_exit}{detail}")

    def _act(self, step: Step) -> None:
        start_ns, said = time.monotonic_ns(), ""
        match step.action:
            case Sleep(ns=ns):
                time.sleep(min(ns, self._until(step) - start_ns) / 1e9)
            case Read(path=path):
                said = Path(path).read_text()
            case KillStep(step=name, signal=number):
                process = self._background.pop(name)
                process.signal(number)
                process.wait(self._until(step))
                self.emit("step", **process.close())
            case CgroupSet(cgroup=cgroup, file=file, value=value):
                self._groups.set(cgroup, file, value)
            case WaitStep(step=name):
                process = self._background.pop(name)
                process.wait(self._until(step))
                self._close(process)
            case _:
                raise _StepError(step.name, "the host back end does not know this action")
        took_ns = time.monotonic_ns() - start_ns
        ended = {"exit": 0, "signal": None, "elapsed_ns": took_ns, "stdout": said, "stderr": "", "timed_out": False}
        self.emit("step", name=step.name, **ended)


def _topology() -> list[dict[str, Any]]:
    """Return this machine's CPUs as the guest's agent lists them."""
    cpus = sysfs.read(Path("/")).cpus
    siblings = {cpu.core: [other.number for other in cpus if other.core == cpu.core] for cpu in cpus}
    return [
        {
            "cpu": cpu.number,
            "core": cpu.core,
            "llc": cpu.llc,
            "node": cpu.node,
            "siblings": ",".join(map(str, siblings[cpu.core])),
        }
        for cpu in cpus
    ]


def _outrank() -> None:
    """Run as SCHED_FIFO, so that no scheduler under test can starve the time-outs; without root, go on without."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _raise_loopback() -> None:
    """Bring up the one interface of a new network namespace (netdevice(7))."""
    set_flags, up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))


def main() -> None:
    """Carry out the job of the folder on the command line."""
    folder = Path(sys.argv[1])
    task = Task.model_validate_json((folder / TASK).read_bytes())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what becomes of a job
    scratch = folder / "mount"
    scratch.mkdir()
    root = tree.mount(task.tree, scratch)
    shutil.copytree(folder / FILES, root, dirs_exist_ok=True)
    _raise_loopback()
    _outrank()
    _Run(task, root, folder).carry_out()


if __name__ == "__main__":
    main()
