"""Attaches and detaches a sched_ext scheduler on this machine."""

import signal
import time
from pathlib import Path
from typing import Any

from heddle_lab.errors import HeddleError
from heddle_lab.job import SchedulerCommand, Step
from heddle_lab.native.process import Process

SCHED_EXT = Path("/sys/kernel/sched_ext")

_PERIOD_NS = 10_000_000
"""between two looks at the kernel's state"""


class Attached:
    """A scheduler that the kernel uses."""

    def __init__(self, command: SchedulerCommand, root: Path, outputs: Path, until_ns: int) -> None:
        """Start a scheduler, and wait until it is attached.

        Args:
            command: the job's.
            root: of the userland.
            outputs: folder for its output.
            until_ns: time of the monotonic clock at which it counts as failed.

        Raises:
            HeddleError: it ends, or is not attached by then; `record` says what it wrote.
        """
        self._name = command.name
        step = Step(name=f"scheduler {command.name}", argv=command.argv)
        self._process = Process(step, command.argv, 0, root, outputs)
        while _state() != "enabled":
            if self._process.wait(time.monotonic_ns() + _PERIOD_NS) or time.monotonic_ns() > until_ns:
                raise NotAttachedError(self._record("failed"))
        self.record = self._record("attached")

    @property
    def lost(self) -> bool:
        """Whether it has ended, or the kernel has thrown it out."""
        return self._process.wait(0) or _state() != "enabled"

    def stop(self, number: int = signal.SIGTERM) -> dict[str, Any]:
        """End it, wait until the kernel uses its own scheduler again, and return the record."""
        died = self.lost
        self._process.signal(number)
        self._process.wait(time.monotonic_ns() + 10_000_000_000)
        while _state() == "enabled":
            time.sleep(_PERIOD_NS / 1e9)
        return self._record("died" if died else "detached")

    def _record(self, state: str) -> dict[str, Any]:
        ops = (SCHED_EXT / "root/ops").read_text().strip() if state == "attached" else ""
        said = self._process.close() if state != "attached" else {"exit": None, "signal": None}
        kept = {name: said.get(name, "") for name in ("exit", "signal", "stdout", "stderr")}
        return {"event": "scheduler", "state": state, "name": self._name, "ops": ops, "console": "", **kept}


class NotAttachedError(HeddleError):
    """A scheduler failed to attach."""

    def __init__(self, record: dict[str, Any]) -> None:
        """Take the record that says so."""
        super().__init__(f"scheduler '{record['name']}' failed to attach")
        self.record = record


def _state() -> str:
    return (SCHED_EXT / "state").read_text().strip()
