"""A page has a note on its tables exactly if other sources than the tree's have measured one of them."""

from pathlib import Path

import pytest

from heddle_lab import pages, paths, resultfile, sources
from heddle_lab.cell import Cell
from heddle_lab.experiment import Overrides
from heddle_lab.resultfile import CellResult

PLAIN = "# A page\n\nNumbers: [it](../results/it/table.md), [that](../results/it/report.html#x).\n"
LINK = "[it](../results/it/table.md)"
LINE = "> Measured before the scheduler or the laboratory last changed: {}."
NOTE = f"\n<!-- versions:begin -->\n{LINE}\n<!-- versions:end -->\n"


@pytest.fixture
def cell(cache: Path) -> Cell:
    assert cache
    return Overrides(workloads=["hackbench"], schedulers=["eevdf"], seeds=1).apply(None).cells()[0]


def result(measured: dict[str, str] | None) -> CellResult:
    provenance = {"cell": "c", "inputs": {}, "versions": {"commit": "0123456789abcdef"}}
    own = {"sources": measured} if measured is not None else {}
    return CellResult(
        machine="smp-4",
        kernel="7.3",
        variant="eevdf",
        sched="eevdf",
        workload="hackbench",
        params={},
        seed=1,
        metrics={},
        counters={},
        provenance=provenance | own,
    )


@pytest.fixture
def docs(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one page that links to one folder of results."""
    assert cache
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    page = tmp_path / "docs" / "guide" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text(PLAIN)
    return tmp_path / "docs"


def test_what_decides_a_cell_is_named(cell: Cell) -> None:
    of = sources.of_cell(cell)
    assert list(of) == ["clock", "guest", "machine smp-4", "workload hackbench"]
    assert sources.changed(of) == []
    assert sources.changed(of | {"guest": "0", "machine nowhere": "1"}) == ["guest", "machine nowhere"]
    other = cell.workload.model_copy(update={"steps": [*cell.workload.steps, {"name": "more"}]})
    assert sources.changed(sources.of_cell(cell.model_copy(update={"workload": other}))) == ["workload hackbench"]


@pytest.mark.parametrize(
    ("measured", "said"),
    [(None, "commit `0123456`"), ({"guest": "0", "machine nowhere": "1"}, "commit `0123456`: guest, machine nowhere")],
)
def test_a_page_names_tables_that_are_old(docs: Path, measured: dict[str, str] | None, said: str) -> None:
    resultfile.write(docs / "results" / "it", [result(measured)])
    page = docs / "guide" / "page.md"
    assert pages.is_wrong(page)
    assert pages.update(page)
    assert page.read_text() == PLAIN.replace("page\n", "page\n" + NOTE.format(f"{LINK} ({said})"), 1)
    assert not pages.is_wrong(page)
    assert not pages.update(page)


def test_a_note_goes_when_the_table_is_new(docs: Path, cell: Cell) -> None:
    resultfile.write(docs / "results" / "it", [result(None)])
    page = docs / "guide" / "page.md"
    pages.update(page)
    resultfile.write(docs / "results" / "it", [result({"machine smp-4": sources.of_cell(cell)["machine smp-4"]})])
    assert pages.is_wrong(page)
    assert pages.update(page)
    assert page.read_text() == PLAIN


def test_a_table_that_stands_in_a_page_carries_its_versions(docs: Path, cell: Cell) -> None:
    of = {"machine smp-4": sources.of_cell(cell)["machine smp-4"]}
    page = docs / "demo.md"
    text = "# A page\n\n<!-- demo:begin -->\n{}\nnumbers\n<!-- demo:end -->\n"
    page.write_text(text.format(pages.mark(of)))
    assert not pages.is_wrong(page)
    page.write_text(text.format(pages.mark(of | {"clock": "0"})))
    assert pages.update(page)
    assert NOTE.format("demo (clock)") in page.read_text()


def test_cells_of_several_versions_are_old(cell: Cell) -> None:
    of = sources.of_cell(cell)
    mixed = pages.of_cells([result(of), result(of | {"guest": "0"})])
    assert sources.changed(mixed) == ["guest"]
