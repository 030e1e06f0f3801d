"""The kernels' current task, where the clock looks for task switches; and the names of members."""

import re
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import btf, kernels
from heddle_lab.btf import Btf
from heddle_lab.errors import HeddleError
from tests.btftypes import Types
from tests.conftest import KERNELS

STORE_TO_GS = re.compile(rb"\x65[\x48\x4c]\x89[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)", re.DOTALL)
"""mov %r64, %gs:displacement(%rip)"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_stores_its_current_task_in_one_place(kernel: str) -> None:
    vmlinux = kernels.find(kernel).bootable()
    address = btf.current_task_address(vmlinux)
    with vmlinux.open("rb") as file:
        text = ELFFile(file).get_section_by_name(".text")
        base, code = text["sh_addr"], text.data()
    # Up to 6.14, per-CPU data is linked at 0: instructions wrap around to it.
    ends = ((base + found.end(), found[1]) for found in STORE_TO_GS.finditer(code))
    targets = [(end + struct.unpack("<i", displacement)[0]) % 2**64 for end, displacement in ends]
    assert targets.count(address) == 1


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(HeddleError, match="its BTF has no per-CPU variable current_tusk"):
        btf.per_cpu_address(kernels.find("7.3").bootable(), "current_tusk")


def test_a_program_is_no_kernel() -> None:
    with pytest.raises(HeddleError, match=r"no BTF \(CONFIG_DEBUG_INFO_BTF\): cannot find the kernel's current_task"):
        btf.current_task_address(Path("/bin/sh"))


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 5)), min_size=3), st.data())
def test_each_byte_of_a_struct_is_named_by_its_member(members: list[tuple[int, int]], data: st.DataObject) -> None:
    types = Types()
    arrays = [types.array(types.integer(size), count) for size, count in members]
    number = types.struct("outer", [(f"m{at}", array) for at, array in enumerate(arrays)])
    which = data.draw(st.integers(0, len(members) - 1))
    size, count = members[which]
    element = data.draw(st.integers(0, count - 1))
    offset = sum(size * count for size, count in members[:which]) + size * element + data.draw(st.integers(0, size - 1))
    one = Btf(types.data())
    expected = f".m{which}[{element}]" if one.size(number) > 8 else ""
    assert one.size(number) == types.size(number)
    assert one.field(number, offset) == expected


def test_members_of_nameless_ones_are_members_and_a_word_is_one_thing() -> None:
    types = Types()
    word = types.integer(8)
    lock = types.struct("lock", [("owner", types.integer(4)), ("queue", types.integer(4))])
    either = types.struct("", [("first", word), ("second", types.array(word, 3))], union=True)
    number = types.struct("task", [("lock", lock), ("", either), ("last", types.array(lock, 2))])
    section = types.section(".bss", [("count", word, 0), ("tasks", types.array(number, 4), 64)])
    one = Btf(types.data())
    assert [one.field(number, offset) for offset in (0, 4, 8, 16, 40, 48)] == [
        *(".lock", ".lock", ".first", ".second[1]", ".last[1]", ""),
    ]
    assert one.field(section, 7) == ".count"
    assert one.field(section, 8) == ""
    assert one.field(section, 64 + 2 * types.size(number) + 8) == ".tasks[2].first"
    assert one.struct("task") == number
    assert one.struct("nothing") is None


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_names_the_members_of_its_run_queue(kernel: str) -> None:
    types, base = btf.of_kernel(kernels.find(kernel).bootable())
    [runqueues] = [variable for variable in types.variables(btf.PER_CPU) if variable.name == "runqueues"]
    assert btf.per_cpu_address(kernels.find(kernel).bootable(), "runqueues") == base + runqueues.offset
    fields = {types.field(runqueues.type, offset) for offset in range(0, types.size(runqueues.type), 4)}
    assert {".__lock", ".nr_running", ".cfs.h_nr_runnable", ".scx.nr_running"} <= fields
