"""What one guest reported: the agent's records, typed where they are common."""

from typing import Any

from pydantic import Field

from heddle_lab import trace
from heddle_lab.errors import HeddleError
from heddle_lab.tomlfile import Model
from heddle_lab.trace import TraceEvent

Record = dict[str, Any]


class StepResult(Model):
    """The record of one finished step."""

    model_config = {"extra": "ignore", "frozen": True}

    name: str
    virtual_ns: int
    """when it ended, CLOCK_MONOTONIC of the guest"""
    exit: int | None = None
    signal: int | None = None
    elapsed_ns: int = 0
    """virtual time from start to end"""
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    counters: dict[str, Any] = {}
    """differences of the kernel's counters over the step"""


class Results(Model):
    """The outcome of one boot."""

    records: list[Record]
    console: str = Field(repr=False)
    trace_text: str = Field(default="", repr=False)
    clock: dict[str, Any] = Field(default={}, repr=False)
    """the virtual clock's counters from the last mark on; QEMU's manual explains them under -icount"""
    wall_s: float
    """wall time of the whole boot; the only value here that is not deterministic"""
    failure: str | None = None
    """why the boot as a whole failed, seen from outside: QEMU died, panic, wall time-out"""

    def of(self, event: str) -> list[Record]:
        """Return the records of one kind, such as `scheduler`."""
        return [record for record in self.records if record.get("event") == event]

    def steps(self) -> list[StepResult]:
        """Return all finished steps, in the order in which they ended."""
        return [StepResult.model_validate(record) for record in self.of("step")]

    def step(self, name: str) -> StepResult:
        """Return a step by name.

        Raises:
            HeddleError: it did not finish; says what went wrong instead.
        """
        for step in self.steps():
            if step.name == name:
                return step
        raise HeddleError(f"step '{name}' did not finish: {self.error or 'the job has no such step'}")

    @property
    def virtual_ns(self) -> int:
        """Virtual time of the last record."""
        return int(self.records[-1]["virtual_ns"]) if self.records else 0

    @property
    def error(self) -> str | None:
        """What went wrong, one line; none if the job ran to its end as expected.

        The agent's own words come first: they are nearer to the cause than what is seen from outside.
        """
        for record in self.records:
            if record.get("event") == "error":
                step = f"step '{record['step']}': " if record.get("step") else ""
                return f"{step}{record.get('message', 'unknown error')}"
            if record.get("event") == "scheduler" and record.get("state") in ("failed", "died"):
                return _scheduler_error(record)
        return self.failure

    def check(self) -> "Results":
        """Return self if the job succeeded.

        Raises:
            HeddleError: one line, with the last lines of the console if the guest was lost.
        """
        if self.error:
            raise HeddleError(self.error)
        return self

    def trace(self, event: str | None = None, step: str | None = None) -> list[TraceEvent]:
        """Return the recorded tracepoints in order of time.

        Args:
            event: only these, such as `sched_switch`; none: all.
            step: only those of this step; none: of all traced steps.

        Raises:
            HeddleError: the buffers were too small and events were lost.
        """
        return [hit for hit in trace.parse(self.trace_text, step) if event in (None, hit.event)]


def _scheduler_error(record: Record) -> str:
    verb = "failed to attach" if record["state"] == "failed" else "died"
    # A wrapper may explain itself on stdout alone.
    said = _message(_lines(record, "stderr") or _lines(record, "stdout"))
    detail = f": {said}" if said else f" ({_end(record)})"
    return f"scheduler '{record.get('name')}' {verb}{detail}"


def _lines(record: Record, stream: str) -> list[str]:
    return [line.strip() for line in str(record.get(stream) or "").splitlines() if line.strip()]


def _end(record: Record) -> str:
    """Return how a scheduler's process ended; one that ran on without a scheduler was killed for it."""
    if record.get("exit") is not None:
        return f"exit {record['exit']}"
    return f"signal {record['signal']}" if record.get("signal") is not None else "it ran on without attaching"


def _message(lines: list[str]) -> str:
    """Return the line that says most: the last one, but clap (a wrong option) ends with hints below its message."""
    return next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
