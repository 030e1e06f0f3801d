"""A row that shows something else when it is measured for longer is listed."""

import json
from pathlib import Path

import pytest

from heddle_lab import windows
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment, WorkloadPoint
from heddle_lab.results import Results

WORKLOAD = """
name = "w"
summary = "s"
source = "s"
window = "for_ms"

[params.for_ms]
default = 500
unit = "ms"
summary = "s"

[[steps]]
name = "go"
argv = ["heddle-load", "spin", "--for-ms", "{{ for_ms }}"]

[[metrics]]
name = "rate"
step = "go"
unit = "/s"
better = "higher"
value = "rate * 500 / for_ms"

[[metrics]]
name = "wait_ns.p99"
step = "go"
unit = "ns"
better = "lower"
value = "wait"
samples = "for_ms * 2"
"""


@pytest.fixture(name="wanted")
def _wanted(cache: Path, tmp_path: Path) -> Experiment:
    assert cache
    (tmp_path / "w.toml").write_text(WORKLOAD)
    return Experiment(
        name="e",
        summary="s",
        machines=["smp-4"],
        kernels=["7.3"],
        schedulers=["eevdf", "mine=heddle-load spin"],
        workloads=[WorkloadPoint(name=str(tmp_path / "w.toml"))],
        seeds=3,
    )


def results_of(rate: float, wait: float) -> Results:
    said = {"rate": rate, "wait": wait}
    step = {"event": "step", "name": "go", "virtual_ns": 1, "elapsed_ns": 5, "stdout": json.dumps(said)}
    return Results(records=[step, {"event": "done", "virtual_ns": 2}], console="", wall_s=0.0)


def found(wanted: Experiment, gains: dict[int, float]) -> windows.Invariance:
    """Compare windows where the candidate's rate is higher by a part.

    Args:
        wanted: the experiment.
        gains: length of the window in ms -> by which part more, less 0.01 for each seed; one that is missing was not
            measured.
    """
    planned = windows.plan(wanted)
    results = {}
    for one in planned:
        for cell in (one.cell, one.longer):
            for_ms = int(cell.params["for_ms"])
            if for_ms in gains:
                gain = gains[for_ms] + cell.seed / 100 if cell.scheduler.name != "eevdf" else 0
                results[cell.key()] = results_of(for_ms * (1 + gain), 100 + cell.seed)
    return windows.compare(planned, results)


def test_a_cell_has_a_twin_of_twice_the_window(wanted: Experiment) -> None:
    planned = windows.plan(wanted)
    assert len(planned) == 2 * wanted.seeds
    assert all((one.cell.params["for_ms"], one.longer.params["for_ms"]) == (500, 1000) for one in planned)
    assert len({cell.key() for one in planned for cell in (one.cell, one.longer)}) == 4 * wanted.seeds


@pytest.mark.parametrize(
    ("gain", "agrees"),
    [(0.1, True), (0.105, True), (0.2, False), (0.05, False), (-0.1, False)],
)
def test_the_longer_window_shows_the_same_sign_within_the_interval(
    wanted: Experiment, gain: float, agrees: bool
) -> None:
    rows = found(wanted, {500: 0.1, 1000: gain}).rows
    assert [one.agrees for one in rows if one.row.metric == "rate"] == [agrees]


def test_a_metric_that_one_window_lacks_is_no_row(wanted: Experiment) -> None:
    """The 99th percentile has a thousand samples at the window, and none more is needed at twice that."""
    assert {one.row.metric for one in found(wanted, {500: 0.1, 1000: 0.1}).rows} == {"rate", "wait_ns.p99"}
    short = wanted.model_copy(
        update={"workloads": [wanted.workloads[0].model_copy(update={"params": {"for_ms": 400}})]}
    )
    assert {one.row.metric for one in found(short, {400: 0.1, 800: 0.1}).rows} == {"rate"}


def test_what_was_not_measured_is_counted(wanted: Experiment) -> None:
    half = found(wanted, {500: 0.1})
    assert (half.rows, half.lost) == ([], 2 * wanted.seeds)


def test_the_page_lists_what_does_not_agree(wanted: Experiment) -> None:
    text = "\n".join(windows.section(found(wanted, {500: 0.1, 1000: 0.3})))
    assert "Of 2 rows, 1 show" in text
    assert "1 do not." in text
    assert "of those 1, 1 have intervals that do not overlap." in text
    assert "| smp-4, Linux 7.3 | w | rate ↑ | eevdf | mine | +12.0 % | +11.0 % … +13.0 % | +32.0 % |" in text
    assert "wait_ns" not in text


def test_a_workload_without_a_window_cannot_be_varied(wanted: Experiment, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(WORKLOAD.replace('window = "for_ms"', ""))
    with pytest.raises(HeddleError, match="workload 'w' does not say which parameter is its window"):
        windows.plan(wanted)
