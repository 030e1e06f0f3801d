"""A cell: one point of an experiment, with everything that can change its result."""

import hashlib
from typing import Any

from heddle_lab import hashing, hostfiles, image, paths, tracing, vm
from heddle_lab.job import Job, Sleep, Step
from heddle_lab.kernels import Kernel
from heddle_lab.machine import Machine
from heddle_lab.scheduler import Scheduler
from heddle_lab.tomlfile import Model
from heddle_lab.variant import Contestant, Variant
from heddle_lab.workload import Value, Workload

OFFSET_STEP = "start-offset"
"""the sleep before the first step, whose length the seed decides"""

_OFFSET_RANGE_NS = 20_000_000
"""a few ticks at any HZ, so that a seed's phase against tick and slice is arbitrary"""


class Cell(Model):
    """Machine x kernel x contestant x workload x parameters x seed."""

    machine: Machine
    kernel: Kernel
    """of the run; the contestant may have its own"""
    contestant: Contestant
    workload: Workload
    params: dict[str, Value]
    """all parameters of the workload, defaults included; the contestant may have its own values"""
    seed: int
    traced: bool = False
    """the twin of the cell that is not: sched tracepoints are recorded while the measured step runs"""
    variation: str = ""
    """how the machine's model was varied (`robust`); empty: not at all"""
    backend: str = "clock"
    """what runs it (`backends`)"""

    @property
    def label(self) -> str:
        """What the cell is, for progress lines and errors."""
        more = [self.variation] * bool(self.variation) + ["traced"] * self.traced
        return " ".join([self.point, self.booted.name, self.contestant.name, f"seed {self.seed}", *more])

    @property
    def point(self) -> str:
        """The workload with its parameters, such as `hackbench load=1.25 loops=100`."""
        return " ".join([self.workload.name, *(f"{name}={value}" for name, value in self.params.items())])

    @property
    def booted(self) -> Kernel:
        """The kernel that the guest boots."""
        return self.contestant.kernel or self.kernel

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that the guest starts."""
        return self.contestant.scheduler

    @property
    def values(self) -> dict[str, Value]:
        """The parameters that the workload gets."""
        own = {name: value for name, value in self._variant.param.items() if name in self.workload.params}
        return self.workload.parameters(self.params | own) if own else self.params

    @property
    def _variant(self) -> Variant:
        """What differs beside the scheduler, which may be nothing."""
        return self.contestant.variant or _PLAIN

    def job(self) -> Job:
        """Return the job for the guest's agent: the variant's settings, the seed's start offset, then the workload."""
        offset = Step(name=OFFSET_STEP, action=Sleep(ns=start_offset_ns(self.seed)))
        steps = self.workload.job_steps(self.values, self.machine, self.seed)
        if env := self._variant.env:
            steps = [step.model_copy(update={"env": step.env | env}) if step.argv else step for step in steps]
        if self.traced:
            steps = tracing.steps(steps, self.measured_step, self.machine, self.booted.release)
        return Job(seed=self.seed, scheduler=self.scheduler.command(), steps=[*self._variant.steps(), offset, *steps])

    @property
    def measured_step(self) -> str:
        """The step whose time and counters are the cell's: that of the workload's first metric."""
        return self.workload.metrics[0].step

    def twin(self) -> "Cell":
        """Return this cell with its measured step recorded."""
        return self.model_copy(update={"traced": True})

    def guest(self) -> vm.Guest:
        """Return what to boot."""
        layers = self.workload.userland()
        return vm.Guest(
            machine=self.machine,
            kernel=self.booted,
            job=self.job(),
            layers=layers,
            files=self.scheduler.files(layers),
            job_files={**self.workload.guest_files(), **hostfiles.contents(self.workload.host_files())},
            boot_parameters=self._boot_parameters,
        )

    @property
    def _boot_parameters(self) -> tuple[str, ...]:
        return tuple(filter(None, [self._variant.cmdline]))

    def inputs(self) -> dict[str, Any]:
        """Return everything that can change the result, files by their hashes, as plain data.

        How the output becomes metrics is not part of it: that is done anew from the stored records.
        """
        layers = self.workload.userland()
        files = hostfiles.fingerprint(self.workload.host_files()) | {
            path: hashlib.sha256(content).hexdigest() for path, (_, content) in self.workload.guest_files().items()
        }
        return {
            "machine": self.machine.fingerprint(),
            "cpu": vm.cpu(self.machine),
            "command_line": " ".join((vm.command_line(self.booted, self.machine), *self._boot_parameters)),
            "kernel": hashing.of_file(self.booted.bootable()),
            "kernel_config": hashing.of_file(self.booted.config),
            "qemu": hashing.of_file(paths.qemu()),
            "image": [hashing.of_file(file) for file in image.layer_files(layers)],
            "scheduler": self.scheduler.fingerprint(layers),
            "job": self.job().model_dump(mode="json"),
            "begin_ns": vm.begin_ns(self.machine),
        } | ({"files": files} if files else {})

    def key(self) -> str:
        """Return the cell's name in the store: the hash of its inputs."""
        return hashing.of_data(self.inputs())


_PLAIN = Variant(name="plain")


def start_offset_ns(seed: int) -> int:
    """Return how long a guest sleeps before its first step, virtual ns; a fixed function of the seed."""
    digest = hashlib.sha256(f"start offset {seed}".encode()).digest()
    return 1_000_000 + int.from_bytes(digest[:8]) % _OFFSET_RANGE_NS
