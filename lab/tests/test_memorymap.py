"""Naming the addresses of a guest's kernel, without a guest."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import btf, memorymap
from heddle_lab.btf import Btf
from heddle_lab.errors import HeddleError
from heddle_lab.memorymap import BpfMap, MemoryMap, Place, Report, SlabCache
from tests.btftypes import Types

CPUS = 4
UNIT = 0x40000
FIRST = 0xFFFF_8880_F000_0000
"""where the first CPU's data begins"""
IMAGE = 0xFFFF_FFFF_8100_0000
VMALLOC = 0xFFFF_C900_0000_0000
CHUNK = 0xFFFF_E8FF_FFA0_0000
GRQS, BSS = VMALLOC + 0x10_0000, VMALLOC + 0x20_0000
PAGE_NOTES = 0xFFFF_EA00_0000_0000
MODULES = 0xFFFF_FFFF_C000_0000

# To 6.14, per-CPU symbols count from 0; since then they lie where the kernel's image has its copy.
LINKED = (0, IMAGE + 0x300_0000)

VARIABLES = {"current_task": 0, "runqueues": 0x40, "tick_cpu_sched": 0x1000}
"""per-CPU variables by their offset"""
STATIC = 0x2000

KALLSYMS = f"""\
{IMAGE:016x} T _text
{IMAGE:016x} T schedule
{IMAGE + 0x200_0000:016x} D _sdata
{IMAGE + 0x200_0000:016x} D nohz
{IMAGE + 0x200_0100:016x} b tasklist_lock
{IMAGE + 0x400_0000:016x} B _end
{MODULES:016x} t probe\t[virtio]
{MODULES + 0x1000:016x} d queue\t[virtio]
"""

VMALLOCINFO = f"""\
0x{VMALLOC:016x}-0x{VMALLOC + 0x5000:016x}   20480 kernel_clone+0xbc/0x480 pages=4 vmalloc N0=4
0x{VMALLOC + 0x8000:016x}-0x{VMALLOC + 0xD000:016x}   20480 unpurged vm_area
0x{VMALLOC + 0x10000:016x}-0x{VMALLOC + 0x12000:016x}    8192 n_tty_open+0x16/0xe0 pages=1 vmalloc N0=1
0x{CHUNK:016x}-0x{CHUNK + CPUS * UNIT:016x} {CPUS * UNIT} pcpu_get_vm_areas+0x0/0xfe0 vmalloc
"""


def kernel_types() -> Btf:
    types = Types()
    word = types.integer(8)
    rq = types.struct("rq", [("lock", word), ("nr", word), ("clock", types.array(word, 8))])
    types.struct("task", [("state", word), ("prio", word)])
    types.section(btf.PER_CPU, [("runqueues", rq, VARIABLES["runqueues"])])
    return Btf(types.data())


def program_types() -> tuple[str, int, int]:
    """Return the types of a program in base64, and of two maps' values."""
    types = Types()
    word = types.integer(8)
    grq = types.struct("grq", [("lock", word), ("nodes", types.array(word, 7))])
    llc = types.struct("llc", [("queued", word), ("mask", word)])
    bss = types.section(".bss", [("count", word, 0), ("llcs", types.array(llc, 4), 64)])
    return base64.b64encode(types.data()).decode(), grq, bss


def report(linked: int) -> Report:
    bases = [(FIRST + cpu * UNIT - linked) % 2**64 for cpu in range(CPUS)]
    text, grq, bss = program_types()
    ends = [f"{linked:016x} D __per_cpu_start", f"{linked + STATIC:016x} D __per_cpu_end"]
    variables = [f"{linked + offset:016x} d {name}" for name, offset in VARIABLES.items()]
    return Report(
        kallsyms=KALLSYMS + "\n".join([*ends, *variables]),
        vmallocinfo=VMALLOCINFO,
        per_cpu=bases,
        per_cpu_unit=UNIT,
        maps=[
            BpfMap(name="grqs", entries=3, stride=64, values=[GRQS], btf=7, value_type=grq),
            BpfMap(name="bpf.bss", entries=1, stride=128, values=[BSS], btf=7, value_type=bss),
            BpfMap(name="counts", entries=2, stride=8, values=[FIRST + cpu * UNIT + 0x3008 for cpu in range(CPUS)],
                   btf=0, value_type=0),
        ],
        btf={7: text},
        caches=[
            SlabCache(names=["task"], size=32, slabs=[(0x100, 2)]),
            SlabCache(names=["a", "b", "c", "d"], size=96, slabs=[(0x104, 1)]),
            SlabCache(names=["kmalloc-64"], size=64, slabs=[(0x102, 1)]),
        ],
        page_notes=PAGE_NOTES,
    )  # fmt: skip


def at(address: int, physical: int = 0, linked: int = LINKED[1]) -> Place:
    return MemoryMap(report(linked), kernel_types()).place(address, physical)


@pytest.mark.parametrize("linked", LINKED)
@given(cpu=st.integers(0, CPUS - 1), offset=st.integers(0, STATIC - 1))
def test_data_of_a_cpu_is_named_by_the_last_variable_before_it(linked: int, cpu: int, offset: int) -> None:
    place = at(FIRST + cpu * UNIT + offset, linked=linked)
    name, start = max(((name, start) for name, start in VARIABLES.items() if start <= offset), key=lambda pair: pair[1])
    assert (place.part, place.thing, place.offset) == (memorymap.PER_CPU, name, offset - start)
    assert place.instance == f"cpu {cpu}"
    # The same on each CPU, and in lines as they lie.
    assert place.alike == ("", linked + offset)


def test_members_of_per_cpu_variables_have_names() -> None:
    runqueues = FIRST + 2 * UNIT + VARIABLES["runqueues"]
    assert [at(runqueues + offset).field for offset in (0, 8, 16 + 24, 0x100)] == ["lock", "nr", "clock[3]", ""]


@given(cpu=st.integers(0, CPUS - 1), offset=st.integers(STATIC, UNIT - 1), chunk=st.booleans())
def test_what_was_allocated_per_cpu_is_alike_on_each(cpu: int, offset: int, *, chunk: bool) -> None:
    start = CHUNK if chunk else FIRST
    one, other = (at(start + number * UNIT + offset) for number in (cpu, 0))
    if one.part == memorymap.PER_CPU:  # and not the array of a BPF program
        assert (one.thing, one.offset) == ("allocated per CPU", offset)
    assert one.alike == other.alike
    assert one.instance == f"cpu {cpu}"


def test_a_chunk_in_parts_names_no_cpu() -> None:
    whole = f"0x{CHUNK + CPUS * UNIT:016x} {CPUS * UNIT}"
    part = report(LINKED[1]).model_copy(
        update={"vmallocinfo": VMALLOCINFO.replace(whole, f"0x{CHUNK + UNIT:016x} {UNIT}")}
    )
    place = MemoryMap(part, kernel_types()).place(CHUNK + 64, 0)
    assert place == Place(memorymap.OTHER, "vmalloc by pcpu_get_vm_areas", 64)


def test_variables_of_the_kernel_and_of_modules() -> None:
    nohz = IMAGE + 0x200_0000
    assert at(nohz) == Place(memorymap.SYMBOLS, "nohz", 0)
    assert at(nohz + 0xFF) == Place(memorymap.SYMBOLS, "nohz", 0xFF)
    assert at(nohz + 0x104) == Place(memorymap.SYMBOLS, "tasklist_lock", 4)
    assert at(MODULES + 0x1008) == Place(memorymap.SYMBOLS, "queue", 8)
    assert at(MODULES + 0x1000_0000).part == memorymap.OTHER


@pytest.mark.parametrize(
    ("address", "name", "offset", "field"),
    [
        (GRQS, "grqs", 0, "[0].lock"),
        (GRQS + 2 * 64 + 16, "grqs", 144, "[2].nodes[1]"),
        (BSS, "bpf.bss", 0, "count"),
        (BSS + 64 + 3 * 16 + 8, "bpf.bss", 120, "llcs[3].mask"),
        (BSS + 32, "bpf.bss", 32, ""),
    ],
)
def test_values_of_bpf_maps_are_named_to_the_member(address: int, name: str, offset: int, field: str) -> None:
    assert at(address) == Place(memorymap.BPF, name, offset, field)


def test_a_bpf_map_ends_where_its_last_value_does() -> None:
    assert at(GRQS - 1).part == at(GRQS + 3 * 64).part == memorymap.OTHER


def test_values_of_a_per_cpu_map_are_alike() -> None:
    places = [at(FIRST + cpu * UNIT + 0x3010) for cpu in range(CPUS)]
    assert {(place.part, place.thing, place.offset, place.field) for place in places} == {
        (memorymap.BPF, "counts", 8, "[1]")
    }
    assert len({place.alike for place in places}) == 1
    assert [place.instance for place in places] == [f"cpu {cpu}" for cpu in range(CPUS)]


@given(st.integers(0, 2 * 4096 - 1))
def test_objects_of_a_cache_are_alike(offset: int) -> None:
    place = at(0xFFFF_8880_0000_0000, (0x100 << 12) + offset)
    assert (place.part, place.thing, place.offset) == (memorymap.SLAB, "task", offset % 32)
    assert place.field == {0: "state", 1: "prio"}.get(offset % 32 // 8, "")
    assert place.alike == ("task", offset % 32)
    assert place.instance == f"{0x100000 + offset // 32 * 32:#x}"


def test_merged_caches_and_those_of_anything() -> None:
    merged = at(0xFFFF_8880_0000_0000, (0x104 << 12) + 100)
    assert (merged.thing, merged.offset, merged.field) == ("a/b/c/...", 4, "")
    place = at(0xFFFF_8880_0000_0000, (0x102 << 12) + 0x48)
    assert place == Place(memorymap.SLAB, "kmalloc-64 at 0x102040", 8)


def test_stacks_and_the_rest() -> None:
    running, ended = at(VMALLOC + 0x3A48), at(VMALLOC + 0x8000 + 0x3A48)
    assert running.thing == ended.thing == "stack of a task"
    assert running.alike == ended.alike == ("stack of a task", 0x3A48)
    assert at(VMALLOC + 0x10010) == Place(memorymap.OTHER, "vmalloc by n_tty_open", 0x10)
    assert at(0xFFFF_8880_0000_1048) == Place(memorymap.OTHER, "memory 0xffff888000001040", 8)
    assert at(0x7FFF_1234) == Place(memorymap.OTHER, "user space 0x7fff1234", 0)


def test_what_the_kernel_notes_of_pages_is_alike() -> None:
    first, other = at(PAGE_NOTES + 8), at(PAGE_NOTES + 0x123 * 64 + 8)
    assert (first.part, first.thing, first.alike) == (other.part, other.thing, other.alike)
    assert (first.instance, other.instance) == ("page 0x0", "page 0x123")


def test_only_functions_are_code() -> None:
    assert report(0).code().splitlines() == [
        *(f"{IMAGE:016x} T {name}" for name in ("_text", "schedule")),
        f"{MODULES:016x} t probe\t[virtio]",
    ]


def test_a_kernel_that_hides_its_addresses_is_an_error() -> None:
    hidden = report(0).model_copy(update={"kallsyms": "0000000000000000 D nohz\n0000000000000000 D runqueues\n"})
    with pytest.raises(HeddleError, match=r"does not tell the addresses of its variables \(kallsyms\)"):
        MemoryMap(hidden, kernel_types())


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"kallsyms": 1})])
def test_what_is_no_report_is_an_error(text: str) -> None:
    with pytest.raises(HeddleError, match="the guest's report on its memory is not understood"):
        memorymap.read(text)


def test_a_report_is_read_as_the_guest_prints_it() -> None:
    assert memorymap.read(report(0).model_dump_json()) == report(0)
