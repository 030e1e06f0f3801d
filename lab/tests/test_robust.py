"""A verdict stands only if its sign does when the model is varied."""

import pytest

from heddle_lab import comparison, machine, robust
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict
from tests.test_report import cells


def varied(name: str, factor: float) -> list[CellResult]:
    return [cell.model_copy(update={"variation": name}) for cell in cells(factor)]


def verdicts(run: list[CellResult]) -> list[tuple[Verdict, list[str]]]:
    rows = comparison.variants(run)
    return [(row.verdict, row.fragile) for row in rows if row.metric == "elapsed_ns"]


def test_a_sign_that_survives_everywhere_stands() -> None:
    run = [*cells(0.8), *varied("Q/4", 0.7), *varied("speed -30 %", 0.99)]
    assert verdicts(run) == [(Verdict.BETTER, []), (Verdict.BETTER, [])]


def test_a_sign_that_turns_is_unknown() -> None:
    run = [*cells(0.8), *varied("Q/4", 0.7), *varied("speed -30 %", 1.01)]
    assert verdicts(run) == [(Verdict.UNKNOWN, ["speed -30 %"])] * 2


def test_what_was_not_measured_confirms_nothing() -> None:
    some = [cell for cell in varied("Q/4", 0.8) if cell.params["load"] == 0.75]
    assert verdicts([*cells(0.8), *some]) == [(Verdict.BETTER, []), (Verdict.UNKNOWN, ["Q/4"])]


def test_variations_are_no_rows_of_their_own() -> None:
    assert len(comparison.variants([*cells(0.8), *varied("Q/4", 0.8)])) == len(comparison.variants(cells(0.8)))


def test_two_runs_are_compared_as_robustly_as_both_were_measured() -> None:
    before = [*cells(1.0), *varied("Q/4", 1.0)]
    lost = comparison.runs(before, [*cells(1.2), *varied("Q/4", 1.2)])
    assert Verdict.WORSE in {row.verdict for row in lost}
    turned = comparison.runs(before, [*cells(1.2), *varied("Q/4", 0.9)])
    assert Verdict.WORSE not in {row.verdict for row in turned}


@pytest.mark.parametrize("name", ["smp-4", "smp-16-2llc"])
def test_each_variation_differs_in_one_thing(name: str) -> None:
    box = machine.load(name)
    mine = facts(box)
    for variation in robust.variations(box).values():
        assert len([key for key, value in facts(variation).items() if value != mine[key]]) == 1


def facts(box: machine.Machine) -> dict[str, object]:
    """Return all that a variation may change, each by itself; without caches, all costs are 0."""
    footprint = box.caches.footprint_kib if box.caches else 0
    rest = box.model_dump(exclude={"clock", "caches", "topology"})
    return {**box.clock.model_dump(), "footprint": footprint, "topology": box.topology.model_dump(), "rest": rest}


COSTS = ["cache lines", "locked instructions", "IPIs", "kernel entry", "idle exit"]


def test_what_a_machine_does_not_have_is_not_varied() -> None:
    small, large = machine.load("smp-4"), machine.load("smp-16-2llc")
    always = ["Q/4", "speed -30 %", "speed +30 %"]
    costs = [f"{cost}: {change}" for change in ("none", "half", "double") for cost in COSTS]
    assert list(robust.variations(small)) == [*always, *costs]
    more = ["SMT 50 %", "SMT 75 %", "no cold caches", "cold caches x2"]
    assert list(robust.variations(large)) == [*always, *more, *costs]
    assert list(robust.variations(small.model_copy(update={"costs": machine.Costs()}))) == always


def test_speeds_keep_their_ratio() -> None:
    hybrid = machine.load("alderlake-8p8e")
    varied = robust.variations(hybrid)
    speeds = [sorted({cpu.speed for cpu in varied[f"speed {sign}30 %"].layout()}) for sign in "-+"]
    assert speeds == [[42, 70], [78, 130]]
    assert varied["Q/4"].clock.quantum_ns == 250
