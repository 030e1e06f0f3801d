"""Machines: what the guest sees and how fast it runs."""

from collections.abc import Iterator, Sequence
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

MOST_CPUS = 384
"""more were never booted"""

_LARGEST_APIC_ID = 254
"""above, x86 needs an interrupt remapper; machines without need are not given one, as it would change their guests"""

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
    kernel_speed: Speed | None = None
    """likewise in the kernel; none: the same"""


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
    kernel_speed: int
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
        return self.llcs * (sum(kind.cores * kind.threads for kind in self.classes) or self.cores * self.threads)

    @property
    def llcs(self) -> int:
        """Number of last-level caches."""
        return self.sockets * self.dies

    @property
    def nodes(self) -> int:
        """Number of NUMA nodes."""
        return len(self.distances)

    @property
    def shape(self) -> str:
        """What sets it apart, for reading."""
        nodes = f" in {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.cpus} CPUs in {self.llcs} LLCs{nodes}, {self.threads} threads a core"

    @property
    def largest_apic_id(self) -> int:
        """Number of the last CPU as the hardware counts: each level has as many bits as its count needs."""
        apic_id = 0
        for count in (self.sockets, self.dies, self.cores, self.threads):
            apic_id = apic_id << (count - 1).bit_length() | (count - 1)
        return apic_id

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.llcs * self.cores * self.threads > MOST_CPUS:
            raise ValueError(f"{self.llcs * self.cores * self.threads} CPUs; at most {MOST_CPUS} are possible")
        if self.classes and sum(kind.cores for kind in self.classes) != self.cores:
            raise ValueError(f"the cores of the classes do not add up to cores = {self.cores}")
        if self.classes and max(kind.threads for kind in self.classes) != self.threads:
            raise ValueError(f"the largest threads of a class is not threads = {self.threads}")
        square = all(len(row) == self.nodes for row in self.distances)
        if not square or any(self.distances[i][i] != 10 for i in range(self.nodes)) or self.llcs % self.nodes:
            raise ValueError("distances is not a square with 10 from each node to itself, and a divisor of the LLCs")
        return self

    def layout(self, speed: int = 100, kernel_speed: int | None = None) -> list[Cpu]:
        """Return the CPUs in the order in which the guest numbers them.

        Args:
            speed: of cores without a class, instructions per 100 virtual ns.
            kernel_speed: likewise in the kernel; none: the same.
        """
        cpus = []
        alike = CoreClass(name="", cores=self.cores, threads=self.threads, speed=speed, kernel_speed=kernel_speed)
        for llc in range(self.llcs):
            for place, kind in enumerate(self._cores(alike)):
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
                        speed=kind.speed,
                        kernel_speed=kind.kernel_speed or kind.speed,
                        core_class=kind.name,
                    )
                    for thread in range(kind.threads)
                ]
        return cpus

    def _cores(self, alike: CoreClass) -> Iterator[CoreClass]:
        """Yield the class of each core of a die, or one where all are alike."""
        for kind in self.classes or [alike]:
            yield from [kind] * kind.cores


class Clock(Model):
    """The virtual clock; lab/clock/README.md explains each option."""

    quantum_ns: Annotated[int, Field(ge=100, le=1_000_000)] = 1_000
    """length of a round in virtual ns: effects between CPUs are exact to this"""
    speed: Speed = 100
    """instructions per 100 virtual ns, of cores without a class"""
    kernel_speed: Speed | None = None
    """likewise in the kernel; none: the same"""
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


class IdleState(Model):
    """What leaving an idle state takes; a CPU is in the deepest one whose residency it has reached."""

    residency_us: Annotated[int, Field(ge=0, le=1_000_000)]
    """from how long idle on"""
    exit_us: Annotated[float, Field(ge=0, le=10_000)]
    """until the CPU executes again"""


class Costs(Model):
    """What the hardware takes beside a program's instructions, each 0 or left out where it is not modelled."""

    slowdown: Annotated[float, Field(ge=1, le=100)] = 1
    """how many kernel instructions of the real machine take the time of one here; all costs are multiplied by it"""
    line_core_ns: Nanoseconds | None = None
    """to fetch a cache line that another core of the same LLC has; none: lines are not tracked"""
    line_llc_ns: Nanoseconds | None = None
    """from another LLC of the same node; only where there is one"""
    line_node_ns: Nanoseconds | None = None
    """from another node; only where there is one"""
    locked_ns: Nanoseconds = 0
    """of a locked instruction, beyond an ordinary one; needs lines"""
    ipi_send_ns: Nanoseconds = 0
    """until the sender of an interrupt to another CPU goes on"""
    ipi_deliver_ns: Nanoseconds = 0
    """from then until it arrives"""
    syscall_ns: Nanoseconds = 0
    """to enter the kernel by a system call and to leave it"""
    interrupt_ns: Nanoseconds = 0
    """by an interrupt"""
    exception_ns: Nanoseconds = 0
    """by an exception, such as a page fault"""
    cr3_ns: Nanoseconds = 0
    """to switch the address space"""
    idle: tuple[IdleState, ...] = ()
    """the shallowest first"""
    mwait: bool = False
    """whether CPUs idle by MWAIT, which a write to their line ends, and not by HLT, which takes an IPI; needs lines"""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.line_core_ns is None and (self.locked_ns or self.mwait):
            raise ValueError("costs.locked_ns and costs.mwait need costs.line_core_ns")
        residencies = [state.residency_us for state in self.idle]
        if residencies != sorted(set(residencies)):
            raise ValueError("the residencies of costs.idle do not grow")
        return self

    @property
    def longest_exit_ns(self) -> int:
        """Until a CPU executes again that leaves its deepest idle state, virtual ns."""
        return max((self._scaled(1000 * state.exit_us) for state in self.idle), default=0)

    def options(self) -> str:
        """Return QEMU's options of the virtual clock, in virtual ns."""
        entries = (self.syscall_ns, self.interrupt_ns, self.exception_ns, self.cr3_ns)
        options = f",kernel-entry={self._list(entries)},ipi={self._list((self.ipi_send_ns, self.ipi_deliver_ns))}"
        if self.idle:
            states = (f"{1000 * state.residency_us}/{self._scaled(1000 * state.exit_us)}" for state in self.idle)
            options += f",idle={':'.join(states)}"
        if self.line_core_ns is not None:
            lines = (self.line_core_ns, self.line_llc_ns or 0, self.line_node_ns or 0, self.locked_ns)
            options += f",lines={self._list(lines)}"
        return options

    def _scaled(self, ns: float) -> int:
        return round(ns * self.slowdown)

    def _list(self, costs: Sequence[int]) -> str:
        return ":".join(str(self._scaled(ns)) for ns in costs)


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
    costs: Costs = Costs()

    @model_validator(mode="after")
    def _has_latencies(self) -> Self:
        top, caches = self.topology, self.caches
        if caches and (caches.llc_ns is None) == (top.llcs > top.nodes):
            raise ValueError("caches.llc_ns goes with several LLCs in a node, and with nothing else")
        if caches and (caches.node_ns is None) == (top.nodes > 1):
            raise ValueError("caches.node_ns goes with several nodes, and with nothing else")
        lines = self.costs.line_core_ns is not None
        if (self.costs.line_llc_ns is not None) != (lines and top.llcs > top.nodes):
            raise ValueError("costs.line_llc_ns goes with costs.line_core_ns and several LLCs in a node")
        if (self.costs.line_node_ns is not None) != (lines and top.nodes > 1):
            raise ValueError("costs.line_node_ns goes with costs.line_core_ns and several nodes")
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
        return self.topology.layout(self.clock.speed, self.clock.kernel_speed)

    def at_finer_quantum(self, divisor: int) -> Self:
        """Return the machine with a part of its quantum, 100 ns at least."""
        clock = self.clock.model_copy(update={"quantum_ns": max(100, self.clock.quantum_ns // divisor)})
        return self.model_copy(update={"clock": clock})

    def at_speed(self, factor: float) -> Self:
        """Return the machine with the speed of all CPUs times a factor, so that classes keep their ratio."""

        def scaled(speeds: CoreClass | Clock) -> dict[str, int | None]:
            kernel = speeds.kernel_speed and max(1, round(speeds.kernel_speed * factor))
            return {"speed": max(1, round(speeds.speed * factor)), "kernel_speed": kernel}

        classes = [kind.model_copy(update=scaled(kind)) for kind in self.topology.classes]
        topology = self.topology.model_copy(update={"classes": classes})
        clock = self.clock.model_copy(update=scaled(self.clock))
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
        remapper = ["-device", "intel-iommu,intremap=on,eim=on"] * (self.topology.largest_apic_id > _LARGEST_APIC_ID)
        clock = ["-icount", self._icount(kernel, compute)]
        return [*self._cpu_arguments(), *self._memory_arguments(), *remapper, *clock]

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
        by_slot = {cpu.slot: cpu for cpu in self.layout()}
        slots = range(max(by_slot) + 1) if self.topology.classes else range(1)  # the last one is for all that follow
        options += f",speed={':'.join(str(by_slot[slot].speed if slot in by_slot else 100) for slot in slots)}"
        in_kernel = (by_slot[slot].kernel_speed if slot in by_slot else 100 for slot in slots)
        options += f",kernel-speed={':'.join(map(str, in_kernel))}{self.costs.options()}"
        if not compute:
            options += ",compute=off"
        if self.caches or self.costs.line_core_ns is not None:
            cold = ":".join(map(str, self.caches.costs() if self.caches else (0, 0, 0)))
            options += f",cold={cold},current-task={btf.current_task_address(kernel.bootable()):#x}"
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
