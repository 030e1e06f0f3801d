"""Which cache lines move between the CPUs of a cell: their names, what they cost, and the functions that fetch them.

The clock writes down each fetch that takes time (`line-transfers=`, lab/clock/README.md), of which the guest notices
nothing; the guest's kernel says what lies where (`memorymap`). The cell differs from one that is measured by small
programs before and after the measured step. One of them has slab caches keep their pages: the report comes after
the step, and so objects that the step has freed still have a name.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from heddle_lab import btf, memorymap, paths, profile, scratch, vm
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.job import Step
from heddle_lab.memorymap import LINE, MemoryMap, Place
from heddle_lab.profile import Functions
from heddle_lab.tomlfile import Model

_MEMORY = "/usr/bin/heddle-memory"

_FUNCTIONS = 2
"""of those that fetch a line, how many are named"""
_NAMED = 0.1
"""share of a line's time from which on a member or a function of it is named"""


class Fetch(NamedTuple):
    """What one instruction fetched by one address."""

    physical: int
    address: int
    """virtual"""
    pc: int
    """address of the instruction"""
    write: bool
    transfers: int
    ns: int
    """that CPUs waited"""
    cpus: int
    """bitmap of those that fetched it"""


class Line(Model):
    """A cache line, or those that are alike: the same variable of each CPU, the same part of each object."""

    name: str
    part: str
    """one of `memorymap.PARTS`"""
    lines: int
    readers: int
    """CPUs that fetched one of them to read"""
    writers: int
    transfers: int
    """from other cores"""
    ns: int
    """that CPUs waited"""
    functions: list[str]
    """that fetched it, by how long that took"""


class Transfers(Model):
    """The lines of the kernel that moved in a cell's measured step."""

    contestant: str
    switches: int
    """context switches meanwhile"""
    lines: list[Line]
    """the most expensive first"""


def measure(cell: Cell) -> Transfers:
    """Boot a cell and list its lines.

    Raises:
        HeddleError: the machine has no lines, the guest failed, or its measured step runs in the background.
    """
    with scratch.folder() as folder:
        file = folder / "transfers"
        results = vm.run(guest_of(cell), transfers=file).check()
        report = memorymap.read(results.trace_text)
        memory = MemoryMap(report, btf.of_kernel(cell.booted.bootable())[0])
        functions = Functions(profile.read_symbols(report.code()))
        lines = name_lines(read_section(file, vm.Mark.MEASURED, vm.Mark.OVER), memory, functions)
    return Transfers(contestant=cell.contestant.name, switches=profile.switches(results, cell), lines=lines)


def guest_of(cell: Cell) -> vm.Guest:
    """Return the cell's guest with marks around its measured step, and the report on its memory after it.

    Raises:
        HeddleError: the machine has no lines, or the measured step runs in the background and has no end.
    """
    if cell.machine.costs.line_core_ns is None:
        raise HeddleError(f"machine '{cell.machine.name}' models no cache lines: its [costs] have no line_core_ns")
    begin, end = (
        Step(name=f"profile-{name}", argv=[profile.MARK, f"{mark:d}"])
        for name, mark in (("begin", vm.Mark.MEASURED), ("end", vm.Mark.OVER))
    )
    keep = Step(name="profile-keep", argv=[_MEMORY, "keep"])
    report = profile.to_host("profile-memory", f"{_MEMORY} report")
    job = profile.around(cell, [keep, begin], [end], report)
    programs = {profile.MARK: paths.profiler("mark"), _MEMORY: paths.guest_program("heddle-memory")}
    files = {path: (0o755, program.read_bytes()) for path, program in programs.items()}
    plain = cell.guest()
    return plain.model_copy(update={"job": job, "files": {**plain.files, **files}})


def read_section(file: Path, begin: int, end: int) -> Iterator[Fetch]:
    """Yield the fetches between two marks, in the order of physical addresses.

    Raises:
        HeddleError: the guest did not pass these marks one after the other.
    """
    with file.open() as lines:
        for line in lines:
            if line == f"section {begin} {end}\n":
                break
        else:
            raise HeddleError(f"the guest passed no mark {end} after mark {begin}")
        for line in lines:
            if line.startswith("section"):
                return
            physical, address, pc, kind, *count, ns, cpus = line.split()
            yield Fetch(
                physical=int(physical, 16),
                address=int(address, 16),
                pc=int(pc, 16),
                write=kind == "w",
                transfers=sum(map(int, count)),
                ns=int(ns),
                cpus=int(cpus, 16),
            )


class _Row:
    """Lines that are alike, as they are summed up."""

    def __init__(self) -> None:
        self._lines = 0
        self._cpus = {False: 0, True: 0}
        self._transfers = 0
        self._pcs = Counter[int]()
        self._names = Counter[tuple[str, str]]()
        self._instance = ""
        self._part = ""

    def add(self, what: Place, fetches: list[tuple[Fetch, Place]]) -> None:
        """Add what was fetched of one line; by what its name shall go."""
        self._lines += 1
        self._part, self._instance = what.part, what.instance
        for fetch, place in fetches:
            self._cpus[fetch.write] |= fetch.cpus
            self._transfers += fetch.transfers
            self._pcs[fetch.pc] += fetch.ns
            if place.part == what.part:
                self._names[_line_of(fetch, place), place.field] += fetch.ns

    def line(self, functions: Functions) -> Line:
        callers = Counter[str]()
        for pc, ns in self._pcs.items():
            callers[functions.at(pc)[0]] += ns
        return Line(
            name=self._name(),
            part=self._part,
            lines=self._lines,
            readers=self._cpus[False].bit_count(),
            writers=self._cpus[True].bit_count(),
            transfers=self._transfers,
            ns=self._pcs.total(),
            functions=_most(callers),
        )

    def _name(self) -> str:
        """Return the name of what takes most of the time, and its members that do."""
        things = Counter[str]()
        for (thing, _), ns in self._names.items():
            things[thing] += ns
        named = _most(things)
        fields = _most(
            Counter({field: ns for (thing, field), ns in self._names.items() if thing == named[0] and field})
        )
        which = f" [{self._instance}]" if self._instance and self._lines == 1 else ""
        return f"{', '.join(named)}{which}{': ' if fields else ''}{', '.join(fields)}"


def _most(times: Counter[str]) -> list[str]:
    """Return up to two names of which each has a good share of the time, the largest first."""
    ordered = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    least = _NAMED * times.total()
    return [name for name, ns in ordered[:_FUNCTIONS] if ns >= least]


def name_lines(fetches: Iterable[Fetch], memory: MemoryMap, functions: Functions) -> list[Line]:
    """Return the lines, those that are alike as one, the most expensive first.

    Args:
        fetches: in the order of physical addresses.
        memory: what lies where.
        functions: of the instructions that fetched.
    """
    rows: defaultdict[Hashable, _Row] = defaultdict(_Row)
    for line, group in groupby(fetches, lambda fetch: fetch.physical // LINE):
        placed = [(fetch, memory.place(fetch.address, fetch.physical)) for fetch in group]
        # Several addresses may map it: the one that says more, or else by which most time passes, names it.
        _, place = max(placed, key=lambda pair: (pair[1].part != memorymap.OTHER, pair[0].ns))
        kind, byte = place.alike or ("", line * LINE)
        rows[place.part, place.alike is None, kind, byte // LINE].add(place, placed)
    lines = [row.line(functions) for row in rows.values()]
    return sorted(lines, key=lambda line: (-line.ns, line.name))


def _line_of(fetch: Fetch, place: Place) -> str:
    """Return the thing that an address belongs to, and where in it the line begins."""
    byte = fetch.address if place.alike is None else place.alike[1]
    offset = max(0, place.offset - byte % LINE)
    return f"{place.thing}+{offset:#x}" if offset else place.thing


def table(found: Transfers, most: int) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines as people read them: all lines, those of each part, and the most expensive ones."""
    parts = {part: [line for line in found.lines if line.part == part] for part in memorymap.PARTS}
    sums = {"all": found.lines, **parts}
    headings = ["line", "fetched by", "lines", "readers", "writers", "transfers", "ns"]
    heads = [_sum(name, lines, found.switches) for name, lines in sums.items() if lines]
    return headings, heads + [_cells(line, found.switches) for line in found.lines[:most]]


def _sum(name: str, lines: list[Line], switches: int) -> list[str]:
    count = str(sum(line.lines for line in lines))
    return [name, "", count, "", "", *_per_switch(lines, switches)]


def _cells(line: Line, switches: int) -> list[str]:
    counts = map(str, (line.lines, line.readers, line.writers))
    return [line.name, ", ".join(line.functions), *counts, *_per_switch([line], switches)]


def _per_switch(lines: list[Line], switches: int) -> list[str]:
    sums = (sum(line.transfers for line in lines), sum(line.ns for line in lines))
    return [f"{total / switches:.{digits}f}" for total, digits in zip(sums, (2, 0), strict=True)]
