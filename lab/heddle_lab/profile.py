"""Where the instructions of a cell go: the functions of the kernel and of BPF programs, per context switch.

A plugin of QEMU counts them (lab/profile/instructions.c), of which the guest notices nothing. So code that runs with
interrupts off is seen as any other, and a count is exact. The cell differs from one that is measured by two runs of a
small program, at the begin and the end of the measured step, and by what comes after.
"""

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from heddle_lab import paths, scratch, vm
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.job import Job, Step
from heddle_lab.results import Results
from heddle_lab.tomlfile import Model

USER = "user space"
KERNEL = "kernel"
BPF = "BPF programs"

_WALL_TIMEOUT_S = 3 * vm.WALL_TIMEOUT_S
"""counting takes wall time, though no virtual time"""

MARK = "/usr/bin/heddle-mark"
"""where the guest has the program that executes marks (lab/profile/mark.S)"""

_SYMBOLS = "grep -i '^[0-9a-f]* [tw] ' /proc/kallsyms"
"""each line is the address, the kind and the name of a symbol"""

# A job without traced steps leaves the port free.
_TO_HOST = """
    for port in /sys/class/virtio-ports/*; do
      if [ "$(cat "$port/name")" = heddle.trace ]; then
        exec {command} > "/dev/${{port##*/}}"
      fi
    done
    echo "no port heddle.trace" >&2
    exit 1
"""

_COPIES = re.compile(r"\.(?:isra|constprop|part|cold|llvm)\b.*")
"""what a compiler adds to the name of a function that it has copied or split"""

_PROGRAM = re.compile(r"bpf_prog_[0-9a-f]{16}_?")
"""what the kernel puts before the name of a BPF program: its hash"""

_GLUE = re.compile(r"bpf_trampoline_|bpf_dispatcher_|bpf__")
"""code that the kernel makes to call BPF programs"""


class Function(NamedTuple):
    """What was executed of one function."""

    insns: int
    calls: int
    """executions of its first instruction"""


class Profile(Model):
    """The instructions of a cell's measured step."""

    contestant: str
    switches: int
    """context switches meanwhile"""
    functions: dict[str, Function]
    """by name; those of BPF programs end in ` [bpf]`, those of modules in ` [MODULE]`; all of user space is one"""

    def total(self, of: str) -> int:
        """Return the instructions of `USER`, `BPF`, or `KERNEL`, that is all others."""
        return sum(function.insns for name, function in self.functions.items() if _part(name) == of)


class Row(NamedTuple):
    """A function, or a part of all, under each scheduler."""

    name: str
    insns: tuple[float, ...]
    """per switch"""
    calls: tuple[float, ...] | None = None
    """per switch; none where several functions are summed up"""

    @property
    def spread(self) -> float:
        """How far the schedulers are apart, or all instructions if there is one."""
        return max(self.insns) - min(self.insns) if len(self.insns) > 1 else self.insns[0]


def measure(cell: Cell) -> Profile:
    """Boot a cell and count.

    Raises:
        HeddleError: the guest failed, or its measured step runs in the background and has no end to mark.
    """
    job = _job(cell)
    mark = (0o755, paths.profiler("mark").read_bytes())
    plain = cell.guest()
    guest = plain.model_copy(update={"job": job, "files": {**plain.files, MARK: mark}})
    with scratch.folder() as folder:
        counts = folder / "counts"
        results = vm.run(guest, _WALL_TIMEOUT_S, counts=counts).check()
        functions = attribute(read_counts(counts), read_symbols(results.trace_text))
    return Profile(contestant=cell.contestant.name, switches=switches(results, cell), functions=functions)


def around(cell: Cell, before: list[Step], after: list[Step], last: Step) -> Job:
    """Return a cell's job with more steps.

    Args:
        cell: of which the job is.
        before: steps before the measured one.
        after: steps after it.
        last: a step at the end of the job.

    Raises:
        HeddleError: the measured step runs in the background and has no end.
    """
    job, steps = cell.job(), list[Step]()
    for step in job.steps:
        if step.name != cell.measured_step:
            steps.append(step)
            continue
        if step.background:
            raise HeddleError(f"step '{step.name}' of {cell.workload.name} runs in the background: cannot profile it")
        steps += [*before, step, *after]
    return job.model_copy(update={"steps": [*steps, last]})


def to_host(name: str, command: str) -> Step:
    """Return a step whose output the host finds in `Results.trace_text`.

    Args:
        name: of the step.
        command: for the guest's shell.
    """
    return Step(name=name, argv=["sh", "-c", _TO_HOST.format(command=command)])


def _job(cell: Cell) -> Job:
    """Return the cell's job with marks around its measured step, and the names of all functions at the end."""
    begin, end = (Step(name=f"profile-{name}", argv=[MARK]) for name in ("begin", "end"))
    return around(cell, [begin], [end], to_host("profile-symbols", _SYMBOLS))


def switches(results: Results, cell: Cell) -> int:
    """Return the context switches in a cell's measured step.

    Raises:
        HeddleError: there are none.
    """
    found = int(results.step(cell.measured_step).counters["switches"])
    if not found:
        raise HeddleError(f"{cell.label}: no context switch in step '{cell.measured_step}'")
    return found


def read_counts(file: Path) -> Iterator[tuple[int, int, int]]:
    """Return the lines of the plugin: address, instructions, executions."""
    with file.open() as lines:
        for line in lines:
            address, insns, executions = line.split()
            yield int(address, 16), int(insns), int(executions)


def read_symbols(text: str) -> list[tuple[int, str]]:
    """Return the functions of /proc/kallsyms, by address, under the names that `Profile` has.

    Raises:
        HeddleError: there are none with an address.
    """
    symbols: dict[int, str] = {}
    for line in text.splitlines():
        address, _, name, *module = line.split()
        symbols.setdefault(int(address, 16), _name(name, module[0] if module else ""))
    if not any(symbols):
        raise HeddleError("the guest's kernel does not tell the addresses of its functions (kallsyms)")
    return sorted(symbols.items())


def _name(symbol: str, module: str) -> str:
    """Return what a symbol is called: copies and hashes make no other function of it."""
    if module != "[bpf]":
        return " ".join(filter(None, [_COPIES.sub("", symbol), module]))
    if _GLUE.match(symbol):
        return "calls of BPF programs [bpf]"
    return f"{_PROGRAM.sub('', symbol) or symbol} [bpf]"


class Functions:
    """The functions of a guest, by address."""

    def __init__(self, symbols: list[tuple[int, str]]) -> None:
        """Take address and name of functions, in the order of addresses. What lies before the first is of none."""
        self._symbols = symbols
        self._addresses = [address for address, _ in symbols]

    def at(self, address: int) -> tuple[str, int]:
        """Return the name of the function that an instruction belongs to, and the offset in it, bytes."""
        at = bisect.bisect_right(self._addresses, address) - 1
        if at < 0:
            return "unknown", address
        start, name = self._symbols[at]
        return name, address - start


def attribute(counts: Iterable[tuple[int, int, int]], symbols: list[tuple[int, str]]) -> dict[str, Function]:
    """Return what was executed of each function.

    Args:
        counts: address, instructions and executions of pieces of straight code; address 0: user space.
        symbols: as `Functions` takes them.
    """
    functions = Functions(symbols)
    insns, calls = Counter[str](), Counter[str]()
    for address, length, executions in counts:
        name, offset = functions.at(address) if address else (USER, 0)
        insns[name] += length * executions
        if address and not offset:
            calls[name] += executions
    return {name: Function(number, calls[name]) for name, number in insns.items() if number}


def rows(profiles: list[Profile], most: int) -> list[Row]:
    """Return all instructions, their parts, and the functions by which schedulers differ most, or the largest.

    Args:
        profiles: of the same point under each scheduler.
        most: how many functions.
    """
    parts = {part: [profile.total(part) for profile in profiles] for part in (KERNEL, BPF, USER)}
    sums = {"all": [sum(column) for column in zip(*parts.values(), strict=True)], **parts}
    heads = [Row(name, _per_switch(numbers, profiles)) for name, numbers in sums.items()]
    names = dict.fromkeys(name for profile in profiles for name in profile.functions if name != USER)
    functions = [_row(name, profiles) for name in names]
    return heads + sorted(functions, key=lambda row: (-row.spread, row.name))[:most]


def _row(name: str, profiles: list[Profile]) -> Row:
    found = [profile.functions.get(name, Function(0, 0)) for profile in profiles]
    insns = _per_switch([one.insns for one in found], profiles)
    return Row(name, insns, _per_switch([one.calls for one in found], profiles))


def _per_switch(numbers: list[int], profiles: list[Profile]) -> tuple[float, ...]:
    return tuple(number / profile.switches for number, profile in zip(numbers, profiles, strict=True))


def table(profiles: list[Profile], most: int) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of `rows` as people read them."""
    names = [profile.contestant for profile in profiles]
    two = len(profiles) == 2
    headings = ["function", *names, *(["difference"] if two else []), *(f"calls, {name}" for name in names)]
    return headings, [_line(row, two) for row in rows(profiles, most)]


def _line(row: Row, two: bool) -> list[str]:
    change = [f"{row.insns[1] - row.insns[0]:+.0f}".replace("-", "−")] if two else []
    calls = [f"{number:.2f}" for number in row.calls] if row.calls else [""] * len(row.insns)
    return [row.name, *(f"{number:.0f}" for number in row.insns), *change, *calls]


def _part(name: str) -> str:
    if name == USER:
        return USER
    return BPF if name.endswith(" [bpf]") else KERNEL
