"""The clock's two test guests: a ROM that counts every instruction, and a Linux kernel whose init is the probe.

Both print facts, lines of `@name number...`, which rom/rom.c and probe.c explain.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle_lab import cpio, kernels, paths, vm
from heddle_lab.errors import HeddleError
from heddle_lab.machine import Caches, Clock, Costs, Machine, Topology

HERE = Path(__file__).parent
KERNEL = "6.18"
MACHINE = "q35,hpet=off"
"""the lab's; README.md says why"""
TIMEOUT_S = 900.0
"""wall seconds after which a guest counts as hung"""

_ROM_FLAGS = (
    *("-m32", "-mno-sse", "-ffreestanding", "-fno-pic", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
    *("-nostdlib", "-static", f"-Wl,-m,elf_i386,-T,{HERE / 'rom' / 'rom.ld'},--build-id=none"),
)
_ROM_END = 0x1_0000_0000
_TASK, _ROM_TASK = re.compile(r"(?<=current-task=)\w+"), "0x5000"
"""where a kernel has its task, and where the ROM has what it calls one: TASK in rom.c"""
_ROM_STATUS = 1
"""what QEMU exits with when the guest writes 0 to isa-debug-exit"""


@dataclass(frozen=True)
class Cpu:
    """The clock's counters of one vCPU."""

    insns: int
    computed: int
    """of which COMPUTE stood for so many"""
    turns: int
    pauses: int
    paused_ns: int
    moves: list[int]
    """tasks that came from the same core, another core, another LLC, another node"""
    stalled_ns: int
    """charged for them"""
    events: list[int]
    """system calls, interrupts, exceptions, switches of the address space, and IPIs sent"""
    transfers: list[int]
    """cache lines that came from the same core, another core, another LLC, another node"""
    fetching_ns: int
    """charged for them, and for locked instructions"""
    switches: int
    """between tasks"""
    wakeups: int
    """from HLT or MWAIT"""
    waking_ns: int
    """charged for them"""


@dataclass(frozen=True)
class Run:
    """One finished guest."""

    text: str
    """everything it printed"""
    counters: str
    """the file that QEMU wrote at exit, as it is; its manual explains it under -icount"""
    wall_s: float
    cpu_s: float
    """host CPU time that QEMU used"""

    def facts(self, name: str) -> list[tuple[int, ...]]:
        """Return the numbers of every line `@name number...`, in order.

        Raises:
            HeddleError: there is no such line.
        """
        lines = [line.split() for line in self.text.splitlines() if line.startswith(f"@{name} ")]
        if not lines:
            raise HeddleError(f"the guest printed no @{name}: {self.text[-500:]!r}")
        return [tuple(int(field) for field in line[1:]) for line in lines]

    def counter(self, name: str) -> int:
        """Return one of the clock's global counters, such as `rounds`."""
        value: int = json.loads(self.counters)[name]
        return value

    @property
    def cpus(self) -> list[Cpu]:
        """Counters by CPU index."""
        return [Cpu(**cpu) for cpu in json.loads(self.counters)["cpus"]]

    @property
    def insns(self) -> int:
        """Instructions executed by all CPUs, from power-on to power-off."""
        return sum(cpu.insns for cpu in self.cpus)

    @property
    def turns(self) -> int:
        """Turns of all CPUs, from power-on to power-off."""
        return sum(cpu.turns for cpu in self.cpus)


def rom(
    topology: Topology,
    clock: Clock | None = None,
    caches: Caches | None = None,
    costs: Costs | None = None,
    *,
    compute: bool = True,
    only: str = "",
) -> Run:
    """Run all scenarios of the ROM, or one.

    Args:
        topology: the machine's; 2..64 CPUs in one socket and die.
        clock: quantum, speed and SMT; the defaults of a machine if None.
        caches: what a task loses that moves; nothing if None.
        costs: what the hardware takes beside instructions; nothing if None.
        compute: whether COMPUTE is more than a NOP.
        only: the scenario, such as `lines`; all if empty.

    Raises:
        HeddleError: QEMU is not built, or the guest did not come to its end.
    """
    with tempfile.TemporaryDirectory(prefix="heddle-clock-") as name:
        image = Path(name) / "rom.bin"
        _build_rom(image, [f"-DONLY=scenario_{only}"] if only else [])
        devices = ["-device", "isa-debugcon,iobase=0xe9,chardev=text", "-device", "isa-debug-exit,iobase=0xf4"]
        machine = _machine(topology, clock, caches, costs)
        arguments = machine.qemu_arguments(kernels.find(KERNEL), compute=compute)
        arguments = [_TASK.sub(_ROM_TASK, argument) for argument in arguments]
        arguments += ["-cpu", vm.cpu(machine), "-bios", str(image), *devices]
        return _run(Path(name), arguments, status=_ROM_STATUS)


def linux(
    command: str,
    topology: Topology,
    clock: Clock | None = None,
    caches: Caches | None = None,
    costs: Costs | None = None,
) -> Run:
    """Boot a kernel, let the probe do one command, and wait until it has powered off.

    Args:
        command: as in the comment at the top of probe.c: `spin,8,8,1000000`.
        topology: the machine's.
        clock: quantum, speed and SMT; the defaults of a machine if None.
        caches: what a task loses that moves; nothing if None.
        costs: what the hardware takes beside instructions; nothing if None.

    Raises:
        HeddleError: something is not built, or the guest did not come to its end.
    """
    kernel = kernels.find(KERNEL)
    with tempfile.TemporaryDirectory(prefix="heddle-clock-") as name:
        initrd = Path(name) / "initrd"
        probe = _compile(Path(name) / "probe", ["-static", "-pthread", HERE / "probe.c"])
        initrd.write_bytes(cpio.pack({"/init": (0o755, probe.read_bytes())}))
        arguments: list[str | Path] = ["-kernel", kernel.bootable(), "-initrd", initrd]
        machine = _machine(topology, clock, caches, costs)
        arguments += ["-append", f"{vm.command_line(kernel, machine)} probe={command}"]
        arguments += ["-device", "isa-serial,chardev=text"]
        return _run(Path(name), [*machine.qemu_arguments(kernel), "-cpu", vm.cpu(machine), *arguments])


def _machine(topology: Topology, clock: Clock | None, caches: Caches | None, costs: Costs | None) -> Machine:
    facts = {"name": "probe", "summary": "", "source": "", "memory_mib": 1024}
    return Machine(**facts, topology=topology, clock=clock or Clock(), caches=caches, costs=costs or Costs())


def _run(folder: Path, guest: Sequence[str | Path], *, status: int = 0) -> Run:
    """Run a guest of the given arguments to its end.

    Raises:
        HeddleError: QEMU's status is another one, or the guest did not print @done.
    """
    text, counters = folder / "text", folder / "counters"
    arguments = list(guest)
    icount = arguments.index("-icount") + 1
    arguments[icount] = f"{arguments[icount]},counters={counters}"
    command: list[str | Path] = [
        *(paths.qemu(), "-L", paths.firmware()),
        *("-M", MACHINE),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-rtc", "base=2026-01-01,clock=vm", "-seed", "1"),
        *("-chardev", f"file,id=text,path={text}", *arguments),
    ]
    start, before = time.monotonic(), os.times()
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    wall_s, after = time.monotonic() - start, os.times()
    output = text.read_text(errors="replace") if text.exists() else ""
    if ended.returncode != status or "@done" not in output:
        raise HeddleError(f"a test guest ended with {ended.returncode}: {ended.stderr.strip()} {output[-500:]}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(text=output, counters=counters.read_text(), wall_s=wall_s, cpu_s=cpu_s)


def _build_rom(image: Path, definitions: Sequence[str]) -> None:
    elf = image.with_suffix(".elf")
    sources = [HERE / "rom" / "start.S", HERE / "rom" / "rom.c"]
    _compile(elf, [*_ROM_FLAGS, *definitions, *sources])
    sections = ["-j", ".text", "-j", ".reset", "--gap-fill", "0", "--pad-to", str(_ROM_END)]
    subprocess.run(["objcopy", "-O", "binary", *sections, elf, image], check=True)


def _compile(binary: Path, arguments: Sequence[str | Path]) -> Path:
    subprocess.run([os.environ.get("CC", "gcc"), "-O2", "-Wall", "-Wextra", "-o", binary, *arguments], check=True)
    return binary
