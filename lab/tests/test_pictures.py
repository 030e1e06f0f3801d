"""What the page draws: well-formed, complete, within its frame."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heddle_lab import cdf, comparison, html, machinepicture, resultfile, timelines, tracing
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results
from heddle_lab.store import Store
from tests.conftest import KERNELS
from tests.test_report import TOPOLOGY, cells

DATA = Path(__file__).parent / "measures" / "data"


def parsed(picture: str) -> ElementTree.Element:
    """Return the root of a picture that this package drew."""
    return ElementTree.fromstring(picture)  # noqa: S314 (our own output, not a stranger's XML)


def cpus(nodes: int, llcs: int, cores: int, threads: int) -> list[dict[str, int]]:
    """Return a topology: LLCs per node, cores per LLC, threads per core."""
    total = nodes * llcs * cores * threads
    core = [cpu // threads for cpu in range(total)]
    return [
        {"cpu": cpu, "core": core[cpu], "llc": core[cpu] // cores, "node": core[cpu] // cores // llcs}
        for cpu in range(total)
    ]


@pytest.mark.parametrize(
    ("nodes", "llcs", "cores", "threads"), [(1, 1, 4, 1), (1, 2, 4, 2), (1, 11, 8, 2), (4, 1, 24, 2), (2, 3, 1, 1)]
)
def test_a_machine_is_drawn_whole_and_within_its_frame(nodes: int, llcs: int, cores: int, threads: int) -> None:
    box = cpus(nodes, llcs, cores, threads)
    picture = parsed(machinepicture.svg(box, [100]))
    _, _, width, height = (float(word) for word in picture.attrib["viewBox"].split())
    texts = [text.text or "" for text in picture.iter("text")]
    assert sorted(int(text) for text in texts if text.isdigit()) == list(range(len(box)))
    assert len([text for text in texts if "LLC" in text]) == nodes * llcs
    for rect in picture.iter("rect"):
        x, y, wide, high = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + wide <= width <= 336
        assert y + high <= height


def test_slow_cores_are_drawn_paler() -> None:
    picture = machinepicture.svg(cpus(1, 1, 2, 1), [200, 50])
    assert re.findall(r'fill-opacity="(0\.\d+)"/>', picture) == ["0.45", "0.11"]


def test_distributions_rise_and_stay_in_the_frame() -> None:
    quantiles = [100 * (1 + number) for number in range(len(tracing.QUANTILES))]
    picture = parsed(cdf.svg({"a <b>": [quantiles], "c": [quantiles, quantiles]}, tracing.QUANTILES))
    lines = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in picture.iter("polyline")
    ]
    assert len(lines) == 3
    _, _, width, height = (float(word) for word in picture.attrib["viewBox"].split())
    for line in lines:
        assert line == sorted(line, key=lambda point: (point[0], -point[1]))
        assert all(0 <= x <= width and 0 <= y <= height for x, y in line)


@pytest.fixture(params=KERNELS)
def traced(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, list[resultfile.CellResult]]:
    """A store with one real trace, and a run whose every cell points to it."""
    store = Store(tmp_path / "cells")
    ready = {"event": "ready", "virtual_ns": 0, "topology": TOPOLOGY}
    text = (DATA / f"{request.param}.jsonl").read_text()
    store.put("feed", Results(records=[ready], console="", wall_s=0.0, trace_text=text))
    about = {"traced_cell": "feed", "measured_step": "sample"}
    return store, [cell.model_copy(update={"provenance": cell.provenance | about}) for cell in cells()]


def test_a_traced_cell_is_drawn_into_the_page(
    traced: tuple[Store, list[resultfile.CellResult]], tmp_path: Path
) -> None:
    store, run = traced
    rows = comparison.variants(run)
    chosen = timelines.telling(rows, run)
    assert {cell.variant for cell in chosen} == {"eevdf", "scx_heddle"}
    drawn = {timelines.write(tmp_path, cell, store): timelines.label(cell, run) for cell in chosen}
    about = resultfile.About(title="t", command="c", timelines=drawn, topologies={"smp-4": TOPOLOGY})
    page = html.render(about, run, rows, html.pictures(tmp_path, about, run))
    for name, label in drawn.items():
        assert f"timelines/{name}.perfetto-trace" in page
        assert label in page
        assert (tmp_path / "timelines" / f"{name}.perfetto-trace").stat().st_size > 1000
    assert page.count("<svg") == page.count("</svg>") > 5


def test_pictures_of_an_earlier_run_are_dropped_and_nothing_else(
    traced: tuple[Store, list[resultfile.CellResult]], tmp_path: Path
) -> None:
    store, run = traced
    first, second = (timelines.write(tmp_path, cell, store) for cell in run[:2])
    beside = tmp_path / "notes.svg"
    beside.write_text("mine")
    timelines.drop(tmp_path, [first, "never-drawn", "../notes"])
    left = {path.name.removeprefix(second) for path in (tmp_path / "timelines").iterdir()}
    assert left == {".svg", ".perfetto-trace"}
    assert beside.exists()
    timelines.drop(tmp_path / "no such folder", [first])


def test_what_cannot_be_drawn_says_why(traced: tuple[Store, list[resultfile.CellResult]], tmp_path: Path) -> None:
    store, run = traced
    with pytest.raises(HeddleError, match="was not traced: measure it with `heddle run --trace`"):
        timelines.write(tmp_path, cells()[0], store)
    with pytest.raises(HeddleError, match="is not in the store of this host"):
        timelines.write(tmp_path, run[0], Store(tmp_path / "empty"))
    with pytest.raises(HeddleError, match="no interval begins at 60000 ms"):
        timelines.write(tmp_path, run[0], store, start_ns=60 * 10**9)


def test_a_cell_is_found_by_what_tells_it_from_others() -> None:
    run = cells()
    found = resultfile.find(run, {"variant": "eevdf", "seed": 2, "kernel": None}, {"load": 1.25})
    assert (found.variant, found.seed, found.params["load"]) == ("eevdf", 2, 1.25)
    with pytest.raises(HeddleError, match="2 cells have variant eevdf, seed 2: add --param load"):
        resultfile.find(run, {"variant": "eevdf", "seed": 2}, {})
    with pytest.raises(HeddleError, match="no cell has variant cfs"):
        resultfile.find(run, {"variant": "cfs"}, {})


def test_the_file_keeps_what_is_drawn(tmp_path: Path) -> None:
    about = resultfile.About(title="t", command="c", topologies={"smp-4": TOPOLOGY}, timelines={"a": "b"})
    resultfile.write_about(tmp_path, about)
    assert resultfile.about(tmp_path) == about
    assert json.loads((tmp_path / "run.json").read_text())["title"] == "t"
