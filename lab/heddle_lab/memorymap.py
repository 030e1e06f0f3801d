"""What lies where in a guest's memory: the names of addresses, from what the guest's kernel says of itself.

A program in the guest asks the kernel (lab/guest/src/memory): for its symbols, where each CPU's data begins, where the
values of BPF maps lie and of what type they are, which pages hold which slab cache, and which function allocated the
rest.
"""

import base64
import bisect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from pydantic import ValidationError

from heddle_lab import btf
from heddle_lab.btf import Btf
from heddle_lab.errors import HeddleError
from heddle_lab.tomlfile import Model

SYMBOLS = "kernel's variables"
PER_CPU = "per-CPU data"
BPF = "BPF maps"
SLAB = "slab objects"
OTHER = "other memory"
PARTS = (SYMBOLS, PER_CPU, BPF, SLAB, OTHER)

LINE = 64
"""bytes of a cache line"""

_KERNEL_SPACE = 1 << 63
_WORD = 1 << 64
_PAGE_BITS = 12
_MODULE_BYTES = 1 << 20
"""no variable of a module is further from its symbol"""

_PAGE_NOTES_BYTES = 1 << 40
"""where there may be some (Documentation/arch/x86/x86_64/mm.rst)"""

_STACK_BYTES = (16 + 4) << 10
"""of a task's stack, with the page before it that is left out"""
_FORKS = {"kernel_clone", "fork_idle", "copy_process", "dup_task_struct", "alloc_thread_stack_node", "unpurged"}
"""functions that the kernel names for a stack; the last: it is free, but not yet for others"""

_NAMES = 3
"""of a merged cache, how many are told"""

_CODE = frozenset("tTwW")
"""kinds of symbols in /proc/kallsyms"""

_AREA = re.compile(r"0x([0-9a-f]+)-0x([0-9a-f]+) +(\d+) ([\w.]+)")


class BpfMap(Model):
    """A BPF map whose values lie one after the other."""

    name: str
    entries: int
    stride: int
    """bytes from one value to the next"""
    values: list[int]
    """where the first one lies: one address, or one for each CPU"""
    btf: int
    """number of its types, 0 if they are not known"""
    value_type: int


class SlabCache(Model):
    """A slab cache, and the pages that it has."""

    names: list[str]
    """more than one where the kernel has merged caches"""
    size: int
    """bytes from one object to the next"""
    slabs: list[tuple[int, int]]
    """number of the first page, and how many"""


class Report(Model):
    """What `heddle-memory report` prints. Addresses are virtual."""

    kallsyms: str
    vmallocinfo: str
    per_cpu: list[int]
    """what each CPU adds to the addresses of per-CPU symbols"""
    per_cpu_unit: int
    """bytes of a CPU's part of a chunk of per-CPU memory"""
    maps: list[BpfMap]
    btf: dict[int, str]
    """types of maps, by their number, in base64"""
    caches: list[SlabCache]
    page_notes: int
    """what the kernel notes of each page of memory (struct page), that of page 0 first"""

    def code(self) -> str:
        """Return those lines of /proc/kallsyms that name functions."""
        return "\n".join(line for line in self.kallsyms.splitlines() if line.split(" ", 2)[1] in _CODE)


class Place(NamedTuple):
    """What lies at an address."""

    part: str
    """one of `PARTS`"""
    thing: str
    """a variable, a map, a cache"""
    offset: int
    """in it, bytes"""
    field: str = ""
    """the member of it, as C names it"""
    alike: tuple[str, int] | None = None
    """what there is many of, and the byte of it: those of all CPUs are alike, and objects of a cache; none: one only"""
    instance: str = ""
    """which of those that are alike: such as `cpu 3`"""


class _Range(NamedTuple):
    start: int
    end: int
    name: Callable[[int], Place]


class _Ranges:
    """Ranges of addresses that do not overlap."""

    def __init__(self, ranges: Iterable[_Range]) -> None:
        self._ranges = sorted(ranges, key=lambda one: one.start)
        self._starts = [one.start for one in self._ranges]

    def place(self, address: int) -> Place | None:
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._ranges[at].end:
            return None
        return self._ranges[at].name(address)


class _Symbols:
    """The kernel's symbols, by address."""

    def __init__(self, kallsyms: str) -> None:
        symbols: dict[int, str] = {}
        self.address: dict[str, int] = {}
        for line in kallsyms.splitlines():
            text, _, name, *_ = line.split()
            address = int(text, 16)
            self.address.setdefault(name, address)
            # Of several names of one address, those of sections' ends begin with `__`.
            if address not in symbols or symbols[address].startswith("_"):
                symbols[address] = name
        if not any(symbols):
            raise HeddleError("the guest's kernel does not tell the addresses of its variables (kallsyms)")
        self._sorted = sorted(symbols.items())
        self._addresses = [address for address, _ in self._sorted]

    def before(self, address: int) -> tuple[str, int]:
        """Return the symbol that begins at an address or last before it, and the offset in bytes."""
        at = max(0, bisect.bisect_right(self._addresses, address) - 1)
        start, name = self._sorted[at]
        return name, address - start


class MemoryMap:
    """The names of a guest's addresses."""

    def __init__(self, report: Report, types: Btf) -> None:
        """Take what the guest reports, and the types of its kernel.

        Raises:
            HeddleError: the kernel hides its addresses.
        """
        self._report = report
        self._types = types
        self._symbols = _Symbols(report.kallsyms)
        self._per_cpu = tuple(self._symbols.address.get(f"__per_cpu_{end}", 0) for end in ("start", "end"))
        self._tables = (_Ranges(self._bpf()), _Ranges(self._cpus()), _Ranges(self._areas()))
        self._slabs = _Ranges(self._slab_pages())

    def place(self, address: int, physical: int) -> Place:
        """Return what lies at an address.

        Args:
            address: virtual.
            physical: the same place in the guest's RAM.
        """
        if address < _KERNEL_SPACE:
            return Place(OTHER, f"user space {address:#x}", 0)
        for table in self._tables[:2]:
            if found := table.place(address):
                return found
        return (
            self._symbol(address)
            or self._tables[2].place(address)
            or self._slabs.place(physical)
            or Place(OTHER, f"memory {address - address % LINE:#x}", address % LINE)
        )

    def _symbol(self, address: int) -> Place | None:
        name, offset = self._symbols.before(address)
        first, end = (self._symbols.address.get(symbol, 0) for symbol in ("_text", "_end"))
        if first <= address < end or (address >= end > 0 and offset < _MODULE_BYTES):
            return Place(SYMBOLS, name, offset)
        return None

    @cached_property
    def _variables(self) -> dict[str, int]:
        """Types of the per-CPU variables."""
        return {variable.name: variable.type for variable in self._types.variables(btf.PER_CPU)}

    def _cpus(self) -> Iterator[_Range]:
        start, end = self._per_cpu
        for cpu, base in enumerate(self._report.per_cpu):
            begin = (base + start) % _WORD
            yield _Range(begin, begin + end - start, self._static(cpu, base))
            yield _Range(begin + end - start, begin + self._report.per_cpu_unit, self._dynamic(cpu, base, 0))

    def _static(self, cpu: int, base: int) -> Callable[[int], Place]:
        def name(address: int) -> Place:
            symbol = (address - base) % _WORD
            variable, offset = self._symbols.before(symbol)
            field = self._field(self._types, self._variables.get(variable), offset)
            return Place(PER_CPU, variable, offset, field, ("", symbol), f"cpu {cpu}")

        return name

    def _dynamic(self, cpu: int, base: int, chunk: int) -> Callable[[int], Place]:
        def name(address: int) -> Place:
            pointer = (address - base) % _WORD
            offset = (pointer - self._per_cpu[0] - chunk) % _WORD
            return Place(PER_CPU, "allocated per CPU", offset, "", ("", pointer), f"cpu {cpu}")

        return name

    def _bpf(self) -> Iterator[_Range]:
        types = {number: Btf(base64.b64decode(text)) for number, text in self._report.btf.items()}
        for one in self._report.maps:
            size = one.stride * one.entries
            for cpu, start in enumerate(one.values):
                per_cpu = cpu if len(one.values) > 1 else None
                yield _Range(start, start + size, self._value(one, types.get(one.btf), start, per_cpu))

    def _value(self, one: BpfMap, types: Btf | None, start: int, cpu: int | None) -> Callable[[int], Place]:
        def name(address: int) -> Place:
            index, within = divmod(address - start, one.stride)
            field = self._field(types, one.value_type, within)
            element = f"[{index}]" if one.entries > 1 else ""
            joint = "." if element and field and not field.startswith("[") else ""
            place = Place(BPF, one.name, address - start, f"{element}{joint}{field}")
            if cpu is None:
                return place
            pointer = (address - self._report.per_cpu[cpu]) % _WORD
            return place._replace(alike=("", pointer), instance=f"cpu {cpu}")

        return name

    def _areas(self) -> Iterator[_Range]:
        notes = self._report.page_notes
        yield _Range(notes, notes + _PAGE_NOTES_BYTES, self._note)
        for line in self._report.vmallocinfo.splitlines():
            if area := _AREA.match(line):
                start, end = int(area[1], 16), int(area[2], 16)
                if area[4] == "pcpu_get_vm_areas" and end - start >= self._span:
                    yield from self._chunk(start)
                else:
                    stack = int(area[3]) == _STACK_BYTES and area[4] in _FORKS
                    yield _Range(start, end, self._stack(start) if stack else self._vmalloc(start, area[4]))

    @property
    def _span(self) -> int:
        """Bytes of a chunk of per-CPU memory; where each NUMA node has an area for its part, none is as large."""
        return max(self._report.per_cpu) - min(self._report.per_cpu) + self._report.per_cpu_unit

    def _chunk(self, start: int) -> Iterator[_Range]:
        """Yield each CPU's part of a chunk; the parts are as far apart as those of the first one."""
        first = min(self._report.per_cpu)
        chunk = (start - first - self._per_cpu[0]) % _WORD
        for cpu, base in enumerate(self._report.per_cpu):
            begin = start + base - first
            yield _Range(begin, begin + self._report.per_cpu_unit, self._dynamic(cpu, base, chunk))

    def _note(self, address: int) -> Place:
        thing, offset = "struct page", address % LINE
        place = Place(OTHER, thing, offset, "", (thing, offset))
        return place._replace(instance=f"page {(address - self._report.page_notes) // LINE:#x}")

    @staticmethod
    def _stack(start: int) -> Callable[[int], Place]:
        thing = "stack of a task"
        return lambda address: Place(OTHER, thing, address - start, "", (thing, address - start), f"{start:#x}")

    @staticmethod
    def _vmalloc(start: int, caller: str) -> Callable[[int], Place]:
        return lambda address: Place(OTHER, f"vmalloc by {caller}", address - start)

    def _slab_pages(self) -> Iterator[_Range]:
        for cache in self._report.caches:
            for first, count in cache.slabs:
                start = first << _PAGE_BITS
                yield _Range(start, start + (count << _PAGE_BITS), self._object(cache, start))

    def _object(self, cache: SlabCache, start: int) -> Callable[[int], Place]:
        thing = "/".join(cache.names[:_NAMES]) + "/..." * (len(cache.names) > _NAMES)

        def name(physical: int) -> Place:
            offset = (physical - start) % cache.size
            at = f"{physical - offset:#x}"
            if thing.startswith("kmalloc"):  # of such objects, no two need to be alike
                return Place(SLAB, f"{thing} at {at}", offset)
            return Place(
                SLAB, thing, offset, self._field(self._types, self._struct(cache), offset), (thing, offset), at
            )

        return name

    def _struct(self, cache: SlabCache) -> int | None:
        """Return the type of a cache's objects: its name, if it has but one, is mostly that of a struct (KMEM_CACHE).

        Objects may be smaller than the struct: what no CPU needs of its end is not allocated (task_struct to 6.15).
        """
        return self._types.struct(cache.names[0]) if len(cache.names) == 1 else None

    @staticmethod
    def _field(types: Btf | None, number: int | None, offset: int) -> str:
        return types.field(number, offset).removeprefix(".") if types and number else ""


def read(text: str) -> Report:
    """Return what a guest has reported.

    Args:
        text: what `heddle-memory report` has printed.

    Raises:
        HeddleError: it is not such a report.
    """
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        raise HeddleError(f"the guest's report on its memory is not understood: {error.errors()[0]['msg']}") from error
