"""A row that shows something else when it is measured for longer, or at a finer quantum, is listed."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from heddle_lab import invariance
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment, WorkloadPoint
from heddle_lab.invariance import Kind, Planned
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
primary = true
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


def results(planned: Sequence[Planned], gain: float, other: float | None) -> dict[str, Results]:
    """Return results in which the candidate's rate is higher by a part.

    Args:
        planned: cells and their twins.
        gain: by which part, less 0.01 for each seed.
        other: likewise in the twins; none: they were not measured.
    """
    found = {}
    for one in planned:
        for cell, part in ((one.cell, gain), (one.varied, other)):
            if part is not None:
                more = part + cell.seed / 100 if cell.scheduler.name != "eevdf" else 0
                found[cell.key()] = results_of(int(cell.params["for_ms"]) * (1 + more), 100 + cell.seed)
    return found


def found(wanted: Experiment, kind: Kind, gain: float, other: float | None) -> invariance.Invariance:
    planned = invariance.plan(wanted, kind)
    return invariance.compare(planned, kind, results(planned, gain, other))


def test_a_cell_has_a_twin_of_twice_the_window(wanted: Experiment) -> None:
    planned = invariance.plan(wanted, "window")
    assert len(planned) == 2 * wanted.seeds
    assert all((one.cell.params["for_ms"], one.varied.params["for_ms"]) == (500, 1000) for one in planned)
    assert len({cell.key() for one in planned for cell in (one.cell, one.varied)}) == 4 * wanted.seeds


def test_a_cell_has_a_twin_of_a_quarter_of_the_quantum(wanted: Experiment) -> None:
    planned = invariance.plan(wanted, "quantum")
    quanta = {(one.cell.machine.clock.quantum_ns, one.varied.machine.clock.quantum_ns) for one in planned}
    assert quanta == {(1000, 250)}
    assert len({cell.key() for one in planned for cell in (one.cell, one.varied)}) == 4 * wanted.seeds


@pytest.mark.parametrize(
    ("gain", "agrees"),
    [(0.1, True), (0.105, True), (0.2, False), (0.05, False), (-0.1, False)],
)
def test_the_longer_window_shows_the_same_sign_within_the_interval(
    wanted: Experiment, gain: float, agrees: bool
) -> None:
    rows = found(wanted, "window", 0.1, gain).rows
    assert [one.agrees for one in rows if one.row.metric == "rate"] == [agrees]


@pytest.mark.parametrize(
    ("gain", "other", "agrees"),
    [(0.1, 0.1, True), (0.1, 0.13, True), (0.1, 0.14, False), (0.1, 0.06, False), (-0.01, -0.03, False)],
)
def test_the_finer_quantum_shows_the_same_sign_and_ratio(
    wanted: Experiment, gain: float, other: float, agrees: bool
) -> None:
    rows = found(wanted, "quantum", gain, other).rows
    assert [one.agrees for one in rows if one.row.metric == "rate"] == [agrees]


def test_a_metric_that_one_window_lacks_is_no_row(wanted: Experiment) -> None:
    """The 99th percentile has a thousand samples at the window, and none more is needed at twice that."""
    assert {one.row.metric for one in found(wanted, "window", 0.1, 0.1).rows} == {"rate", "wait_ns.p99"}
    short = wanted.model_copy(
        update={"workloads": [wanted.workloads[0].model_copy(update={"params": {"for_ms": 400}})]}
    )
    assert {one.row.metric for one in found(short, "window", 0.1, 0.1).rows} == {"rate"}


def test_what_was_not_measured_is_counted(wanted: Experiment) -> None:
    half = found(wanted, "window", 0.1, None)
    assert (half.rows, half.lost) == ([], 2 * wanted.seeds)


def test_the_page_lists_what_does_not_agree(wanted: Experiment) -> None:
    text = "\n".join(invariance.section(found(wanted, "window", 0.1, 0.3)))
    assert "Of 2 rows, 1 show" in text
    assert "1 do not." in text
    assert "of those 1, 1 have intervals that do not overlap." in text
    assert "| smp-4, Linux 7.3 | w | rate ↑ | eevdf | mine | +12.0 % | +9.5 % … +14.5 % | +32.0 % |" in text
    assert "wait_ns" not in text


def test_a_workload_without_a_window_cannot_be_varied(wanted: Experiment, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(WORKLOAD.replace('window = "for_ms"', ""))
    with pytest.raises(HeddleError, match="workload 'w' does not say which parameter is its window"):
        invariance.plan(wanted, "window")
