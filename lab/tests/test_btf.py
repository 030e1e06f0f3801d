"""The kernels' current task: where the clock looks for task switches."""

import re
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from heddle_lab import btf, kernels
from heddle_lab.errors import HeddleError
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
