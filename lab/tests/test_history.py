"""The expected length of a run: from the cells most like those that it has to measure."""

from pathlib import Path

import pytest

from heddle_lab.cell import Cell
from heddle_lab.experiment import Overrides
from heddle_lab.history import History
from heddle_lab.variant import Contestant
from tests.emulator import Emulator


@pytest.fixture
def emulator(cache: Path) -> Emulator:
    return Emulator(cache)


@pytest.fixture
def cell(cache: Path) -> Cell:
    assert cache.is_dir()
    return Overrides(workloads=["hackbench"], schedulers=["eevdf"], kernels=["7.3"], seeds=1).apply(None).cells()[0]


def test_the_cells_most_alike_tell(tmp_path: Path, cell: Cell) -> None:
    named = cell.scheduler.model_copy(update={"name": "scx_other"})
    other = cell.model_copy(update={"contestant": Contestant(scheduler=named)})
    assert History(tmp_path).expected_s(cell) is None
    for wall_s in (3, 5, 100):
        History(tmp_path).add(other, wall_s)
    assert History(tmp_path).expected_s(cell) == 5
    History(tmp_path).add(cell, 7)
    assert History(tmp_path).expected_s(cell) == 7
    assert History(tmp_path).expected_s(other) == 5


def test_a_damaged_line_counts_for_nothing(tmp_path: Path, cell: Cell) -> None:
    (tmp_path / "costs.jsonl").write_text('{"a": 1}\n[\n["x"]\n\n')
    assert History(tmp_path).expected_s(cell) is None


def test_a_run_says_first_what_it_has_to_do_and_how_long_that_takes(emulator: Emulator) -> None:
    first, second, stored = emulator.run(2), emulator.run(5), emulator.run(5)
    assert first.stderr.startswith("2 cells to measure, 0 stored; ")
    assert first.stderr.splitlines()[0].endswith(" at a time: no earlier cell tells how long")
    assert second.stderr.startswith("3 cells to measure, 2 stored; ")
    assert second.stderr.splitlines()[0].endswith(" at a time: about 0 s")
    assert stored.stderr == "all 5 cells are stored: nothing to measure\n"
