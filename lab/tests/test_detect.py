"""Seeds are added where they are needed, and no longer than they are."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heddle_lab import comparison, detect, resultfile
from heddle_lab.cell import Cell
from heddle_lab.detect import Search
from heddle_lab.experiment import Experiment, WorkloadPoint
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.runner import Failure, Outcome
from tests.test_invariance import WORKLOAD

CALM, WILD = 500, 501
"""values of `for_ms` that stand for a point whose seeds agree, and one whose seeds do not"""

SEARCH = Search(effect=0.05, looks=[6, 12, 24])


@pytest.fixture(name="cells")
def _cells(cache: Path, tmp_path: Path) -> list[Cell]:
    assert cache
    (tmp_path / "w.toml").write_text(WORKLOAD)
    wanted = Experiment(
        name="e",
        summary="s",
        machines=["smp-4"],
        kernels=["7.3"],
        schedulers=["eevdf", "mine=heddle-load spin"],
        workloads=[WorkloadPoint(name=str(tmp_path / "w.toml"), params={"for_ms": [CALM, WILD]})],
        seeds=24,
    )
    return wanted.cells()


def measured_by(gain: float, noise: dict[int, float], batches: list[list[Cell]]) -> Callable[[list[Cell]], Outcome]:
    """Return what measures cells: the candidate's rate is higher by a part, give or take what a seed does."""

    def measure(batch: list[Cell]) -> Outcome:
        batches.append(batch)
        results = {}
        for cell in batch:
            random = np.random.default_rng(cell.seed)
            window = int(cell.params["for_ms"])
            part = np.exp(np.log1p(gain) + noise[window] * random.normal()) if cell.scheduler.name != "eevdf" else 1
            said = {"rate": window * 1e6 * part, "wait": 100}
            step = {"event": "step", "name": "go", "virtual_ns": 1, "elapsed_ns": 5, "stdout": json.dumps(said)}
            results[cell.key()] = Results(records=[step, {"event": "done", "virtual_ns": 2}], console="", wall_s=0.0)
        return Outcome(results=results, failures=[], interrupted=False)

    return measure


def results(cells: list[Cell], outcome: Outcome) -> list[CellResult]:
    return [resultfile.from_cell(cell, outcome.results[cell.key()]) for cell in cells if cell.key() in outcome.results]


def pairs(cells: list[Cell]) -> dict[int, int]:
    """Return how many seeds each point has."""
    return {window: len({cell.seed for cell in cells if cell.params["for_ms"] == window}) for window in (CALM, WILD)}


def test_a_point_that_is_decided_gets_no_more_seeds(cells: list[Cell]) -> None:
    batches: list[list[Cell]] = []
    kept, outcome = detect.run(cells, SEARCH, measured_by(0.1, {CALM: 0.001, WILD: 0.2}, batches), results)
    assert pairs(kept) == {CALM: 6, WILD: 24}
    assert [pairs(batch) for batch in batches] == [{CALM: 6, WILD: 6}, {CALM: 0, WILD: 6}, {CALM: 0, WILD: 12}]
    assert len(outcome.results) == len(kept) == 60
    rows = comparison.variants(results(kept, outcome), SEARCH.looks)
    assert {(row.params["for_ms"], row.verdict.value) for row in rows if row.primary} == {
        (CALM, "better"),
        (WILD, "unknown"),
    }


def test_without_a_difference_seeds_end_when_there_are_enough_for_one(cells: list[Cell]) -> None:
    """At 2 % of noise and no effect, 12 pairs would have shown 5 %; at 0.1 % six show that nothing differs."""
    kept, _ = detect.run(cells, SEARCH, measured_by(0.0, {CALM: 0.001, WILD: 0.02}, []), results)
    assert pairs(kept) == {CALM: 6, WILD: 12}


def test_what_is_likely_to_be_needed_is_said(cells: list[Cell], capsys: pytest.CaptureFixture[str]) -> None:
    detect.run(cells, SEARCH, measured_by(0.0, {CALM: 0.001, WILD: 0.3}, []), results)
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert err[0] == "1 point undecided: 5 % takes up to 24 pairs; 1 row more than the 24 of --seeds"


def test_an_interrupted_search_ends_with_what_it_has(cells: list[Cell]) -> None:
    whole = measured_by(0.0, {CALM: 0.3, WILD: 0.3}, [])

    def measure(batch: list[Cell]) -> Outcome:
        return whole(batch).model_copy(update={"interrupted": True})

    kept, outcome = detect.run(cells, SEARCH, measure, results)
    assert outcome.interrupted
    assert pairs(kept) == {CALM: 6, WILD: 6}


def test_a_point_that_fails_is_not_tried_again_with_more_seeds(cells: list[Cell]) -> None:
    def measure(batch: list[Cell]) -> Outcome:
        failures = [Failure(cell=cell.label, error="panic") for cell in batch]
        return Outcome(results={}, failures=failures, interrupted=False)

    kept, outcome = detect.run(cells, SEARCH, measure, results)
    assert pairs(kept) == {CALM: 6, WILD: 6}
    assert len(outcome.failures) == 24
