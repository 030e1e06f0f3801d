"""Machines: what the guest sees and how fast it runs."""

from typing import Annotated

from pydantic import Field, field_validator

from heddle_lab import paths, tomlfile
from heddle_lab.tomlfile import Model

Count = Annotated[int, Field(ge=1)]


class Topology(Model):
    """Counts of each level, from the outside in; a die is one last-level cache."""

    sockets: Count = 1
    dies: Count = 1
    """dies (LLCs) per socket"""
    cores: Count
    """cores per die"""
    threads: Count = 1
    """hardware threads per core"""

    @property
    def cpus(self) -> int:
        """Number of logical CPUs."""
        return self.sockets * self.dies * self.cores * self.threads

    @property
    def llcs(self) -> int:
        """Number of last-level caches."""
        return self.sockets * self.dies


class Clock(Model):
    """The virtual clock; lab/clock/README.md explains each option."""

    quantum_ns: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    """length of a round in virtual ns: effects between CPUs are exact to this"""
    speed: Annotated[list[Annotated[int, Field(ge=1, le=10_000)]], Field(min_length=1)] = [100]
    """instructions per 100 virtual ns; CPU i takes entry i, the last repeats"""


class Machine(Model):
    """A modelled machine, one TOML file each under `machines/`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    source: str
    """where the values come from"""
    memory_mib: Annotated[int, Field(ge=512)]
    topology: Topology
    clock: Clock = Clock()

    @field_validator("topology")
    @classmethod
    def _limits(cls, topology: Topology) -> Topology:
        if topology.cpus > 255:  # above, x86 needs an interrupt remapper that this machine does not have
            raise ValueError(f"{topology.cpus} CPUs; at most 255 are possible")
        return topology

    @property
    def cpus(self) -> int:
        """Number of logical CPUs."""
        return self.topology.cpus

    def qemu_arguments(self) -> list[str]:
        """Return the part of QEMU's command line that makes the machine what it is."""
        top, clock = self.topology, self.clock
        smp = f"cpus={top.cpus},sockets={top.sockets},dies={top.dies},cores={top.cores},threads={top.threads}"
        speed = ":".join(str(entry) for entry in clock.speed)
        icount = f"shift=0,sleep=off,align=off,parallel=on,quantum={clock.quantum_ns},speed={speed}"
        return ["-smp", smp, "-m", f"{self.memory_mib}M", "-icount", icount]


def load(name: str) -> Machine:
    """Return the machine of a shipped name or of a path to a TOML file.

    Raises:
        HeddleError: it is unknown or its file is wrong.
    """
    return tomlfile.load(tomlfile.find(name, paths.MACHINES, "machine"), Machine)
