"""What a kernel, or a BPF program, says of its types and variables: BTF, which every kernel for BPF schedulers has.

The kernel's symbols are not in the packages, its BTF is in the kernel. Format: Documentation/bpf/btf.rst.
"""

import struct
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from heddle_lab.errors import HeddleError

PER_CPU = ".data..percpu"
"""the section of the kernel's per-CPU variables"""

_INT, _POINTER, _ARRAY, _STRUCT, _UNION, _ENUM = range(1, 7)
_TYPEDEF, _VAR, _DATASEC, _FLOAT, _ENUM64 = 8, 14, 15, 16, 19
_TRANSPARENT = {_TYPEDEF, 9, 10, 11, _VAR, 18}
"""kinds that only refer to another type: also volatile, const, restrict, type tag"""
_SIZED = {_INT, _STRUCT, _UNION, _ENUM, _FLOAT, _ENUM64}
"""kinds whose third word is a size in bytes"""
_FIXED = {_INT: 4, _ARRAY: 12, _VAR: 4, 17: 4}
"""bytes after the header of a type, by kind"""
_PER_MEMBER = {_STRUCT: 12, _UNION: 12, _ENUM: 8, 13: 8, _DATASEC: 12, _ENUM64: 12}
"""bytes after that for each of its members"""
_HEADER = struct.Struct("<3I")
_BITS = (1 << 24) - 1
"""of a member's offset, if its struct has bit fields"""
_WORD_BYTES = 8


class Variable(NamedTuple):
    """A variable of a section."""

    name: str
    offset: int
    """bytes from the begin of the section"""
    type: int


class _Type(NamedTuple):
    name: int
    kind: int
    bitfields: bool
    """of a struct or union: its members' offsets have a width in bits above"""
    size: int
    """bytes, or the type that it refers to"""
    begin: int
    """position of what follows the header"""
    members: int


class Btf:
    """The types of a kernel or of a BPF program, by number; 0 is void."""

    def __init__(self, data: bytes) -> None:
        """Take the content of a section `.BTF`."""
        head, types, length, strings = struct.unpack_from("<4I", data, 4)
        self._text = data[head + strings :]
        self._data = data[head + types :][:length]

    @cached_property
    def _types(self) -> list[_Type]:
        found = [_Type(0, 0, bitfields=False, size=0, begin=0, members=0)]
        position = 0
        while position < len(self._data):
            name, info, size = _HEADER.unpack_from(self._data, position)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            begin = position + _HEADER.size
            found.append(_Type(name, kind, bool(info >> 31), size, begin, count))
            position = begin + _FIXED.get(kind, 0) + _PER_MEMBER.get(kind, 0) * count
        return found

    @cached_property
    def _structs(self) -> dict[str, int]:
        numbered = enumerate(self._types)
        return {self._string(one.name): number for number, one in numbered if one.kind in {_STRUCT, _UNION}}

    def _string(self, at: int) -> str:
        return self._text[at : self._text.index(b"\0", at)].decode()

    def _members(self, one: _Type) -> list[tuple[int, int, int]]:
        """Return the three words of each member."""
        words = self._data[one.begin :][: _HEADER.size * one.members]
        return list(_HEADER.iter_unpack(words))

    def _plain(self, number: int) -> tuple[int, _Type]:
        """Return a type without what only names or qualifies it."""
        one = self._types[number]
        while one.kind in _TRANSPARENT:
            number = one.size
            one = self._types[number]
        return number, one

    def struct(self, name: str) -> int | None:
        """Return the number of a struct or union."""
        return self._structs.get(name)

    def variables(self, section: str) -> list[Variable]:
        """Return the variables of a section, in the order of their offsets; none if there is no such section."""
        for one in self._types:
            if one.kind == _DATASEC and self._string(one.name) == section:
                members = self._members(one)
                found = [Variable(self._string(self._types[var].name), offset, var) for var, offset, _ in members]
                return sorted(found, key=lambda variable: variable.offset)
        return []

    def size(self, number: int) -> int:
        """Return the size of a type, bytes; 0 if it has none."""
        _, one = self._plain(number)
        if one.kind == _ARRAY:
            element, _, count = _HEADER.unpack_from(self._data, one.begin)
            return self.size(element) * int(count)
        if one.kind == _POINTER:
            return _WORD_BYTES
        return one.size if one.kind in _SIZED else 0

    def field(self, number: int, offset: int) -> str:
        """Return what of a type is at an offset in bytes, as C names it: such as `[3].queued`; empty if it is all.

        A struct of a word, such as a lock or an atomic counter, is one thing.
        """
        _, one = self._plain(number)
        if one.kind == _ARRAY:
            element, _, _ = _HEADER.unpack_from(self._data, one.begin)
            index, rest = divmod(offset, self.size(element) or 1)
            return f"[{index}]{self.field(element, rest)}"
        for name, inner, start in self._parts(one):
            if 0 <= offset - start < self.size(inner):
                within = self.field(inner, offset - start)
                return f".{self._string(name)}{within}" if name else within
        return ""

    def _parts(self, one: _Type) -> list[tuple[int, int, int]]:
        """Return name, type and first byte of each member of a struct or union, or variable of a section."""
        if one.kind == _DATASEC:
            return [(self._types[var].name, var, offset) for var, offset, _ in self._members(one)]
        if one.kind not in {_STRUCT, _UNION} or one.size <= _WORD_BYTES:
            return []
        mask = _BITS if one.bitfields else -1
        return [(name, inner, (where & mask) // 8) for name, inner, where in self._members(one)]


def current_task_address(kernel: Path) -> int:
    """Return where a CPU keeps its current task, as `per_cpu_address`.

    Raises:
        HeddleError: see `per_cpu_address`.
    """
    try:
        return per_cpu_address(kernel, "current_task")
    except HeddleError as error:
        try:
            # To 6.14 it was the first member of another variable (arch/x86/include/asm/current.h).
            return per_cpu_address(kernel, "pcpu_hot")
        except HeddleError:
            raise error from None


def of_kernel(kernel: Path) -> tuple[Btf, int]:
    """Return a kernel's types, and the address of its per-CPU data relative to the GS base of any CPU.

    Args:
        kernel: the unpacked ELF kernel, loaded where it was linked (nokaslr).

    Raises:
        HeddleError: the file is packed, or has no BTF.
    """
    try:
        with kernel.open("rb") as file:
            elf = ELFFile(file)
            types, per_cpu = elf.get_section_by_name(".BTF"), elf.get_section_by_name(PER_CPU)
            if types is None or per_cpu is None:
                raise HeddleError(f"{kernel}: no BTF (CONFIG_DEBUG_INFO_BTF)")
            return Btf(types.data()), int(per_cpu["sh_addr"])
    except ELFError:
        raise HeddleError(f"{kernel}: packed in an unknown way") from None


@cache
def per_cpu_address(kernel: Path, name: str) -> int:
    """Return a per-CPU variable's address as instructions name it: relative to the GS base of any CPU.

    Args:
        kernel: as in `of_kernel`.
        name: the variable's, such as `current_task`.

    Raises:
        HeddleError: the file is packed, or has no such variable in its BTF.
    """
    try:
        types, base = of_kernel(kernel)
    except HeddleError as error:
        raise HeddleError(f"{error}: cannot find the kernel's {name}") from None
    for variable in types.variables(PER_CPU):
        if variable.name == name:
            return base + variable.offset
    raise HeddleError(f"{kernel}: its BTF has no per-CPU variable {name}")
