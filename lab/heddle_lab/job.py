"""The job that the guest's agent carries out; the same format as `lab/guest/src/agent/job.rs`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from heddle_lab.tomlfile import Model

PROTOCOL: Literal[1] = 1
"""version of the job and of the records; the agent refuses any other"""

Nanoseconds = Annotated[int, Field(ge=1)]


class SchedulerCommand(Model):
    """The scheduler to start before the first step."""

    name: str
    argv: Annotated[list[str], Field(min_length=1)]


class SchedulerStart(Model):
    """Start the job's scheduler again, or another one, and wait until it is attached."""

    kind: Literal["scheduler-start"] = "scheduler-start"
    scheduler: SchedulerCommand | None = None


class SchedulerStop(Model):
    """SIGTERM; wait until the process is gone and sched_ext is disabled."""

    kind: Literal["scheduler-stop"] = "scheduler-stop"


class KillScheduler(Model):
    """SIGKILL; wait likewise."""

    kind: Literal["kill-scheduler"] = "kill-scheduler"


class Write(Model):
    """Write a file of /proc or /sys."""

    kind: Literal["write"] = "write"
    path: str
    value: str


class Read(Model):
    """Return a file of /proc or /sys as the step's stdout."""

    kind: Literal["read"] = "read"
    path: str


class Sleep(Model):
    """Sleep, virtual ns."""

    kind: Literal["sleep"] = "sleep"
    ns: Annotated[int, Field(ge=0)]


class KillStep(Model):
    """Signal a background step's process group and wait for its end."""

    kind: Literal["kill-step"] = "kill-step"
    step: str
    signal: int = 9


class WaitStep(Model):
    """Wait for a background step's end."""

    kind: Literal["wait-step"] = "wait-step"
    step: str


class CgroupSet(Model):
    """Write a cgroup's control file, such as `cpu.max`; creates the group with its parents."""

    kind: Literal["cgroup-set"] = "cgroup-set"
    cgroup: str
    file: str
    value: str


Action = Annotated[
    SchedulerStart | SchedulerStop | KillScheduler | Write | Read | Sleep | KillStep | WaitStep | CgroupSet,
    Field(discriminator="kind"),
]


class Trace(Model):
    """Tracepoints to record while a step runs."""

    events: Annotated[list[str], Field(min_length=1)]
    """such as `sched:sched_switch`"""
    filter: str = ""
    """ftrace's filter, applied to each of the events"""
    buffer_kb: Annotated[int, Field(ge=64)] = 4096
    """ring buffer of each CPU"""
    format: Literal["text", "raw"] = "text"
    """text is rounded to microseconds and costs the guest much; raw is for `measures`"""


class Step(Model):
    """A program to run in the guest, or an action of the agent."""

    name: str
    argv: Annotated[list[str], Field(min_length=1)] | None = None
    action: Action | None = None
    env: dict[str, str] = {}
    cpus: str | None = None
    """CPU list such as `0-3,8`; none: all"""
    cgroup: Annotated[str | None, BeforeValidator(lambda path: path or None)] = None
    """path below the root of cgroup v2, created with its parents, all controllers on; empty: the root"""
    timeout_ns: Nanoseconds = 60_000_000_000
    """virtual time"""
    background: bool = False
    """runs on until a wait-step, a kill-step or the job's end"""
    expect_exit: int | None = 0
    """status that lets the job go on; none: any"""
    stdin: str | None = None
    uid: Annotated[int, Field(ge=0)] = 0
    nice: Annotated[int, Field(ge=-20, le=19)] = 0
    policy: Literal["other", "batch", "idle", "fifo"] = "other"
    trace: Trace | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "Step":
        if (self.argv is None) == (self.action is None):
            raise ValueError(f"step '{self.name}' needs either argv or action")
        return self


class Job(Model):
    """Everything one guest does between power-on and power-off."""

    v: Literal[1] = PROTOCOL
    seed: Annotated[int, Field(ge=0)] = 1
    """also QEMU's -seed; every step finds it in HEDDLE_SEED"""
    timeout_ns: Nanoseconds = 120_000_000_000
    """virtual time for the whole job"""
    scheduler: SchedulerCommand | None = None
    """none: the kernel's own"""
    steps: list[Step] = []
    shell: bool = False
    """after the steps, an interactive shell on the console"""
