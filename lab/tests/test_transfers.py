"""Summing up the transfers of lines, without a guest."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import kernels, machine, memorymap, profile, transfers, variant, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.machine import Costs
from heddle_lab.memorymap import MemoryMap
from heddle_lab.profile import Functions
from heddle_lab.transfers import Fetch, Line, Transfers
from tests import test_memorymap as memory
from tests.test_memorymap import BSS, FIRST, GRQS, IMAGE, UNIT

MAP = MemoryMap(memory.report(memory.LINKED[1]), memory.kernel_types())
FUNCTIONS = Functions([(1000, "lock"), (2000, "unlock"), (3000, "peek")])
RUNQUEUES = FIRST + memory.VARIABLES["runqueues"]

FILE = """\
section 0 3
1000 ffff888000001000 ffffffff81000010 r 1 0 0 17 0000000000000001
section 3 4
1000 ffff888000001000 ffffffff81000010 w 1 2 3 400 0000000000000003
1008 ffffc90000000008 ffffffff81000020 r 0 0 1 90 00000000000000018000000000000000
section 4 0
1000 ffff888000001000 ffffffff81000010 w 9 9 9 999 0000000000000001
"""


def fetch(address: int, ns: int = 100, pc: int = 1000, *, write: bool = True, cpus: int = 1) -> Fetch:
    """Return two transfers; where they are in RAM does not matter, but that no two places are the same does."""
    return Fetch(address % 2**40, address, pc, write, 2, ns, cpus)


def named(*fetches: Fetch) -> list[Line]:
    return transfers.name_lines(sorted(fetches), MAP, FUNCTIONS)


def test_the_section_between_two_marks_is_read(tmp_path: Path) -> None:
    file = tmp_path / "transfers"
    file.write_text(FILE)
    assert list(transfers.read_section(file, 3, 4)) == [
        Fetch(0x1000, 0xFFFF888000001000, 0xFFFFFFFF81000010, True, 6, 400, 0b11),
        Fetch(0x1008, 0xFFFFC90000000008, 0xFFFFFFFF81000020, False, 1, 90, 1 << 64 | 1 << 63),
    ]


def test_a_guest_that_passed_no_marks_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "transfers"
    file.write_text("section 0 2\nsection 2 0\n")
    with pytest.raises(HeddleError, match="the guest passed no mark 4 after mark 3"):
        list(transfers.read_section(file, 3, 4))


def test_a_line_has_the_name_of_what_costs_most_in_it() -> None:
    [line] = named(fetch(GRQS, 700), fetch(GRQS + 8, 200, 2000), fetch(GRQS + 16, 50, 3000, write=False, cpus=0b1110))
    assert line == Line(
        name="grqs: [0].lock, [0].nodes[0]",
        part=memorymap.BPF,
        lines=1,
        readers=3,
        writers=1,
        transfers=6,
        ns=950,
        functions=["lock", "unlock"],
    )


def test_the_offset_is_where_the_line_begins() -> None:
    assert [line.name for line in named(fetch(GRQS + 72, 9), fetch(BSS + 120, 8), fetch(IMAGE + 0x200_0144, 7))] == [
        "grqs+0x40: [1].nodes[0]",
        "bpf.bss+0x40: llcs[3].mask",
        "tasklist_lock+0x40",
    ]


def test_two_variables_of_a_line_are_both_named() -> None:
    nohz = IMAGE + 0x200_0000
    [line] = named(fetch(nohz + 0xC0, 60), fetch(nohz + 0xF8, 40))
    assert line.name == "nohz+0xc0"
    [line] = named(fetch(FIRST + 0x8, 40), fetch(FIRST + 0x38, 40, 2000))
    assert line.name == "current_task [cpu 0]"


def test_the_same_line_of_each_cpu_is_one_row() -> None:
    [line] = named(*(fetch(RUNQUEUES + cpu * UNIT + 8 * (cpu % 2), 10 + cpu, cpus=1 << cpu) for cpu in range(4)))
    assert (line.name, line.lines, line.writers, line.readers) == ("runqueues: nr, lock", 4, 4, 0)
    assert (line.ns, line.transfers) == (46, 8)
    [line] = named(fetch(RUNQUEUES + 3 * UNIT))
    assert (line.name, line.lines) == ("runqueues [cpu 3]: lock", 1)


def test_an_address_of_the_kernel_names_a_line_rather_than_one_of_user_space() -> None:
    user = Fetch(GRQS % 2**40, 0x7FFF_0000, 3000, False, 5, 1000, 1)
    [line] = named(user, fetch(GRQS, 10))
    assert (line.name, line.part, line.ns, line.functions) == ("grqs: [0].lock", memorymap.BPF, 1010, ["peek"])


PLACES: list[Callable[[int], int]] = [
    lambda at: GRQS + at % 192,
    lambda at: BSS + at % 128,
    lambda at: RUNQUEUES + at % 4 * UNIT + at % 80,
    lambda at: IMAGE + 0x200_0000 + at,
    lambda at: 0xFFFF_8880_0010_0000 + at,
]


@given(st.sets(st.tuples(st.sampled_from(PLACES), st.integers(0, 1000), st.integers(0, 5000), st.booleans())))
def test_nothing_is_lost(places: set[tuple[Callable[[int], int], int, int, bool]]) -> None:
    fetches = [fetch(place(at), ns, 1000 + ns % 2500, write=write) for place, at, ns, write in places]
    lines = named(*fetches)
    assert sum(line.ns for line in lines) == sum(one.ns for one in fetches)
    assert sum(line.transfers for line in lines) == sum(one.transfers for one in fetches)
    assert sum(line.lines for line in lines) == len({one.physical // 64 for one in fetches})
    assert [line.ns for line in lines] == sorted((line.ns for line in lines), reverse=True)


def test_the_table_has_sums_and_the_most_expensive_lines_per_switch() -> None:
    found = Transfers(
        contestant="mine",
        switches=10,
        lines=named(fetch(GRQS, 700, cpus=0b101), fetch(GRQS + 64, 90), fetch(RUNQUEUES, 50)),
    )
    headings, rows = transfers.table(found, most=2)
    assert headings == ["line", "fetched by", "lines", "readers", "writers", "transfers", "ns"]
    assert rows == [
        ["all", "", "3", "", "", "0.60", "84"],
        ["per-CPU data", "", "1", "", "", "0.20", "5"],
        ["BPF maps", "", "2", "", "", "0.40", "79"],
        ["grqs: [0].lock", "lock", "1", "0", "2", "0.20", "70"],
        ["grqs+0x40: [1].lock", "lock", "1", "0", "1", "0.20", "9"],
    ]


def cell(*, background: bool) -> Cell:
    box = machine.load("smp-4")
    load = workload.load("perf-pipe")
    steps = [step | {"background": background} for step in load.steps]
    return Cell(
        machine=box.model_copy(update={"costs": Costs()}) if not background else box,
        kernel=kernels.find("7.3"),
        contestant=variant.of_scheduler("eevdf"),
        workload=load.model_copy(update={"steps": steps}),
        params={"loops": 10, "depth": 0},
        seed=1,
    )


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("background", "complaint"), [(False, "machine 'smp-4' models no cache lines"), (True, "runs in the background")]
)
def test_a_cell_without_lines_or_without_an_end_is_refused(*, background: bool, complaint: str) -> None:
    with pytest.raises(HeddleError, match=complaint):
        transfers.measure(cell(background=background))


def test_functions_are_found_by_any_of_their_instructions() -> None:
    assert [FUNCTIONS.at(address) for address in (999, 1000, 2999)] == [("unknown", 999), ("lock", 0), ("unlock", 999)]
    assert profile.Functions([]).at(5) == ("unknown", 5)
