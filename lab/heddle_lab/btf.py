"""Where a kernel keeps a per-CPU variable, from the debug information that it carries for BPF.

The kernel's symbols are not in the packages, its BTF is in every kernel that BPF schedulers can run on.
Format: Documentation/bpf/btf.rst.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from heddle_lab.errors import HeddleError

_PER_CPU = ".data..percpu"
_KIND_VAR, _KIND_DATASEC = 14, 15
_FIXED = {1: 4, 3: 12, 14: 4, 17: 4}
"""bytes after the header of a type, by kind"""
_PER_MEMBER = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""bytes after that for each of its members"""
_HEADER = struct.Struct("<3I")


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


@cache
def per_cpu_address(kernel: Path, name: str) -> int:
    """Return a per-CPU variable's address as instructions name it: relative to the GS base of any CPU.

    Args:
        kernel: the unpacked ELF kernel, loaded where it was linked (nokaslr).
        name: the variable's, such as `current_task`.

    Raises:
        HeddleError: the file is packed, or has no such variable in its BTF.
    """
    try:
        with kernel.open("rb") as file:
            elf = ELFFile(file)
            btf, section = elf.get_section_by_name(".BTF"), elf.get_section_by_name(_PER_CPU)
            if btf is None or section is None:
                raise HeddleError(f"{kernel}: no BTF (CONFIG_DEBUG_INFO_BTF): cannot find the kernel's {name}")
            offset = _offset(btf.data(), name)
            base = int(section["sh_addr"])
    except ELFError:
        raise HeddleError(f"{kernel}: packed in an unknown way: cannot find the kernel's {name}") from None
    if offset is None:
        raise HeddleError(f"{kernel}: its BTF has no per-CPU variable {name}")
    return base + offset


def _offset(btf: bytes, name: str) -> int | None:
    """Return the offset of a variable in the section of per-CPU data."""
    head, types, length, strings = struct.unpack_from("<4I", btf, 4)
    text = btf[head + strings :]

    def string(at: int) -> str:
        return text[at : text.index(b"\0", at)].decode()

    named, section = {}, b""
    for number, kind, at, members in _types(btf[head + types :][:length]):
        if kind == _KIND_VAR:
            named[number] = at
        elif kind == _KIND_DATASEC and string(at) == _PER_CPU:
            section = members
    for variable, offset, _ in _HEADER.iter_unpack(section):
        if string(named[variable]) == name:
            return int(offset)
    return None


def _types(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield number, kind, offset of the name and members of each type."""
    position, number = 0, 1
    while position < len(data):
        name, info, _ = _HEADER.unpack_from(data, position)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        members = position + _HEADER.size + _FIXED.get(kind, 0)
        position = members + _PER_MEMBER.get(kind, 0) * count
        yield number, kind, name, data[members:position]
        number += 1
