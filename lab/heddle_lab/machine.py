"""Machines: what the guest sees and how fast it runs."""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from heddle_lab import btf, paths, tomlfile
from heddle_lab.kernels import Kernel
from heddle_lab.tomlfile import Model

Count = Annotated[int, Field(ge=1)]
Nanoseconds = Annotated[int, Field(ge=0, le=100_000)]
Speed = Annotated[int, Field(ge=1, le=10_000)]

CPU_MODEL = "max"
"""QEMU's; vm.CPU says what it adds and takes away"""

_MOST_CPUS = 255
"""above, x86 needs an interrupt remapper that this machine does not have"""

_TOP_RANK = 50
"""performance level of the fastest cores; Intel's are near this"""

_LINE = 64
"""bytes of a cache line"""


class CoreClass(Model):
    """Some of the cores of each die that are alike, and unlike the others."""

    name: str
    cores: Count
    """per die"""
    threads: Count
    """hardware threads per core"""
    speed: Speed
    """instructions per 100 virtual ns"""


class Cpu(Model):
    """Where a logical CPU is, and how fast. All numbers but `slot` are dense, in the order of the CPUs."""

    slot: int
    """QEMU's index: with classes of cores, some threads have a slot and do not exist"""
    socket: int
    die: int
    """within the socket"""
    place: int
    """the core within the die"""
    thread: int
    """within the core"""
    core: int
    llc: int
    node: int
    speed: int
    core_class: str
    """empty: all are alike"""


class Topology(Model):
    """Counts of each level, from the outside in; a die is one last-level cache."""

    sockets: Count = 1
    dies: Count = 1
    """dies (LLCs) per socket"""
    cores: Count
    """cores per die"""
    threads: Count = 1
    """hardware threads per core; with classes, the most that a core has"""
    classes: list[CoreClass] = []
    """of the cores of each die, in the order of their CPUs; none: all are alike"""
    distances: list[list[Annotated[int, Field(ge=10, le=254)]]] = [[10]]
    """of NUMA nodes, as the firmware tells (SLIT: 10 is local); each node has as many LLCs, in their order"""

    @property
    def cpus(self) -> int:
        """Number of logical CPUs."""
        return self.llcs * sum(threads for threads, _, _ in self._cores())

    @property
    def llcs(self) -> int:
        """Number of last-level caches."""
        return self.sockets * self.dies

    @property
    def nodes(self) -> int:
        """Number of NUMA nodes."""
        return len(self.distances)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.llcs * self.cores * self.threads > _MOST_CPUS:
            raise ValueError(f"{self.llcs * self.cores * self.threads} CPUs; at most {_MOST_CPUS} are possible")
        if self.classes and sum(kind.cores for kind in self.classes) != self.cores:
            raise ValueError(f"the cores of the classes do not add up to cores = {self.cores}")
        if self.classes and max(kind.threads for kind in self.classes) != self.threads:
            raise ValueError(f"the largest threads of a class is not threads = {self.threads}")
        square = all(len(row) == self.nodes for row in self.distances)
        if not square or any(self.distances[i][i] != 10 for i in range(self.nodes)) or self.llcs % self.nodes:
            raise ValueError("distances is not a square with 10 from each node to itself, and a divisor of the LLCs")
        return self

    def layout(self, speed: int = 100) -> list[Cpu]:
        """Return the CPUs in the order in which the guest numbers them.

        Args:
            speed: of cores without a class, instructions per 100 virtual ns.
        """
        cpus = []
        for llc in range(self.llcs):
            for place, (threads, own, name) in enumerate(self._cores()):
                core = llc * self.cores + place
                cpus += [
                    Cpu(
                        slot=core * self.threads + thread,
                        socket=llc // self.dies,
                        die=llc % self.dies,
                        place=place,
                        thread=thread,
                        core=core,
                        llc=llc,
                        node=llc * self.nodes // self.llcs,
                        speed=own or speed,
                        core_class=name,
                    )
                    for thread in range(threads)
                ]
        return cpus

    def _cores(self) -> Iterator[tuple[int, int, str]]:
        """Yield threads, speed (0: the machine's) and class of each core of a die."""
        if not self.classes:
            yield from [(self.threads, 0, "")] * self.cores
        for kind in self.classes:
            yield from [(kind.threads, kind.speed, kind.name)] * kind.cores


class Clock(Model):
    """The virtual clock; lab/clock/README.md explains each option."""

    quantum_ns: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    """length of a round in virtual ns: effects between CPUs are exact to this"""
    speed: Speed = 100
    """instructions per 100 virtual ns, of cores without a class"""
    smt: Annotated[int, Field(ge=1, le=100)] = 100
    """a CPU's speed while another thread of its core executes, per cent"""


class Caches(Model):
    """What a task loses that resumes elsewhere than where it last ran: the time to fetch its footprint again."""

    footprint_kib: Annotated[int, Field(ge=0, le=1 << 20)]
    """how much a task that moves has to fetch"""
    misses: Count
    """fetched at the same time"""
    core_ns: Nanoseconds
    """load-to-use latency of a line that another core of the same LLC has: of the LLC"""
    llc_ns: Nanoseconds | None = None
    """of a line that another LLC of the same node has; only where there is one"""
    node_ns: Nanoseconds | None = None
    """of a line that another node has; only where there is one"""

    def costs(self) -> tuple[int, int, int]:
        """Return the virtual ns that a move to another core, LLC and node costs."""
        lines = self.footprint_kib * 1024 // _LINE
        latencies = (self.core_ns, self.llc_ns or 0, self.node_ns or 0)
        core, llc, node = (lines * latency // self.misses for latency in latencies)
        return core, llc, node


class Machine(Model):
    """A modelled machine, one TOML file each under `machines/`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    source: str
    """where the values come from"""
    memory_mib: Annotated[int, Field(ge=512)]
    """of the whole machine; each NUMA node has an equal part"""
    topology: Topology
    clock: Clock = Clock()
    caches: Caches | None = None
    """none: a task that moves loses nothing"""

    @model_validator(mode="after")
    def _has_latencies(self) -> Self:
        top, caches = self.topology, self.caches
        if caches and (caches.llc_ns is None) == (top.llcs > top.nodes):
            raise ValueError("caches.llc_ns goes with several LLCs in a node, and with nothing else")
        if caches and (caches.node_ns is None) == (top.nodes > 1):
            raise ValueError("caches.node_ns goes with several nodes, and with nothing else")
        return self

    def fingerprint(self) -> dict[str, Any]:
        """Return what of this machine can change a result: all but what it is called and where it is from."""
        return self.model_dump(exclude={"name", "summary", "source"})

    @property
    def cpus(self) -> int:
        """Number of logical CPUs."""
        return self.topology.cpus

    def layout(self) -> list[Cpu]:
        """Return the CPUs in the order in which the guest numbers them."""
        return self.topology.layout(self.clock.speed)

    def at_speed(self, factor: float) -> Self:
        """Return the machine with the speed of all CPUs times a factor, so that classes keep their ratio."""

        def scaled(speed: int) -> int:
            return max(1, round(speed * factor))

        classes = [kind.model_copy(update={"speed": scaled(kind.speed)}) for kind in self.topology.classes]
        topology = self.topology.model_copy(update={"classes": classes})
        clock = self.clock.model_copy(update={"speed": scaled(self.clock.speed)})
        return self.model_copy(update={"topology": topology, "clock": clock})

    def kernel_arguments(self) -> str:
        """Return what the kernel has to be told of the machine: not to keep room for slots without a CPU."""
        return f"possible_cpus={self.cpus}" if self.topology.classes else ""

    def qemu_arguments(self, kernel: Kernel, *, compute: bool = True) -> list[str]:
        """Return the part of QEMU's command line that makes the machine what it is.

        Args:
            kernel: the guest's; QEMU has to know where it keeps the current task.
            compute: whether one instruction may stand for a load's loop, which takes the same virtual time.

        Raises:
            HeddleError: the machine models caches, and the kernel does not tell where.
        """
        return [*self._cpu_arguments(), *self._memory_arguments(), "-icount", self._icount(kernel, compute)]

    def _cpu_arguments(self) -> list[str]:
        top = self.topology
        slots = top.llcs * top.cores * top.threads
        levels = f"sockets={top.sockets},dies={top.dies},cores={top.cores},threads={top.threads}"
        if not top.classes:
            return ["-smp", f"cpus={slots},{levels}"]
        # -smp knows equal cores only: the first CPU is its, the others that exist are put into their slots.
        cpu_type, layout = f"{CPU_MODEL}-x86_64-cpu", self.layout()
        arguments = ["-smp", f"cpus=1,maxcpus={slots},{levels}"]
        arguments += ["-global", f"{cpu_type}.hwp-highest={self._rank(layout[0])}"]
        for cpu in layout[1:]:
            place = f"{self._die(cpu)},core-id={cpu.place},thread-id={cpu.thread}"
            arguments += ["-device", f"{cpu_type},{place},hwp-highest={self._rank(cpu)}"]
        return arguments

    def _rank(self, cpu: Cpu) -> int:
        """Return the highest performance level that a CPU of a hybrid machine reports, in 100 MHz to its kernel."""
        return _TOP_RANK * cpu.speed // max(kind.speed for kind in self.topology.classes)

    def _memory_arguments(self) -> list[str]:
        distances = self.topology.distances
        nodes = range(len(distances))
        each = self.memory_mib // len(distances)
        arguments = ["-m", f"{each * len(distances)}M"]
        if len(distances) == 1:
            return arguments
        for node in nodes:
            arguments += ["-object", f"memory-backend-ram,id=node{node},size={each}M"]
            arguments += ["-numa", f"node,nodeid={node},memdev=node{node}"]
        first_of_die = {cpu.llc: cpu for cpu in reversed(self.layout())}
        for cpu in first_of_die.values():
            arguments += ["-numa", f"cpu,node-id={cpu.node},{self._die(cpu)}"]
        for here in nodes:
            for there in nodes:
                arguments += ["-numa", f"dist,src={here},dst={there},val={distances[here][there]}"]
        return arguments

    def _die(self, cpu: Cpu) -> str:
        """Return how QEMU names a CPU's die; with one die a socket, it does not want to hear of it."""
        return f"socket-id={cpu.socket}" + (f",die-id={cpu.die}" if self.topology.dies > 1 else "")

    def _icount(self, kernel: Kernel, compute: bool) -> str:
        clock = self.clock
        options = f"shift=0,sleep=off,align=off,parallel=on,quantum={clock.quantum_ns},smt={clock.smt}"
        speeds = [clock.speed]  # the last entry is for all CPUs that follow
        if self.topology.classes:
            by_slot = {cpu.slot: cpu.speed for cpu in self.layout()}
            speeds = [by_slot.get(slot, clock.speed) for slot in range(max(by_slot) + 1)]
        options += f",speed={':'.join(map(str, speeds))}"
        if not compute:
            options += ",compute=off"
        if self.caches:
            costs = ":".join(map(str, self.caches.costs()))
            options += f",cold={costs},current-task={btf.current_task_address(kernel.bootable()):#x}"
        return options


def speeds(model: dict[str, Any]) -> list[int]:
    """Return each CPU's instructions per 100 ns, from `topology` and `clock` of a machine as a result records it."""
    return [cpu.speed for cpu in Topology.model_validate(model["topology"]).layout(model["clock"]["speed"])]


def load(name: str) -> Machine:
    """Return the machine of a shipped name or of a path to a TOML file.

    Raises:
        HeddleError: it is unknown or its file is wrong.
    """
    return tomlfile.load(tomlfile.find(name, paths.MACHINES, "machine"), Machine)
