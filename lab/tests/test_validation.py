"""The page says what was measured, what was not, and what disagrees."""

import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from heddle_lab import experiment, invariance, validation
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results
from heddle_lab.runner import Failure, Outcome
from heddle_lab.validation import Checks, Finding, Word

DEFAULTS = {"machine": "smp-4", "kernel": "7.3", "sched": "eevdf"}
SIDE = {"argv": ["heddle-load", "spin"]}


def checks(**fields: object) -> Checks:
    check = {
        "name": "A check",
        "kind": "closed form",
        "claim": "something",
        "source": "arithmetic",
        "accept": [0.9, 1.1],
        "value": "x",
        "sides": [SIDE],
    } | fields
    return Checks.model_validate(
        {"windows": "suite", "quanta": "suite", "pairs": 3, "defaults": DEFAULTS, "checks": [check]}
    )


def measured(wanted: Checks, values: list[float | None]) -> Finding:
    """Judge a check whose boots, in order, printed these values; none: the boot failed."""
    planned = validation.cells(wanted)
    boots = [cell for sides in planned["A check"] for cell in sides]
    results, failures = {}, []
    for cell, value in zip(boots, values, strict=True):
        if value is None:
            failures.append(Failure(cell=cell.label, error="the guest's kernel panicked"))
            continue
        step = {
            "event": "step",
            "name": "measured",
            "virtual_ns": 1,
            "elapsed_ns": 5,
            "stdout": json.dumps({"x": value}),
        }
        results[cell.key()] = Results(records=[step], console="", wall_s=0.0)
    outcome = Outcome(results=results, failures=failures, interrupted=False)
    return validation.judge(wanted, planned, outcome)[0]


@pytest.fixture(autouse=True)
def _cache(cache: Path) -> None:
    assert cache


@pytest.mark.parametrize(
    ("fields", "values", "number", "word"),
    [
        ({}, [1.05], 1.05, Word.AGREE),
        ({}, [1.2], 1.2, Word.DISAGREE),
        ({"must_fail": True}, [1.05], 1.05, Word.DISAGREE),
        ({"must_fail": True}, [3.0], 3.0, Word.AGREE),
        ({"sides": [SIDE, SIDE | {"quantum_ns": 2500}]}, [3.0, 2.0], 1.5, Word.DISAGREE),
        ({"seeds": 3}, [0.5, 1.0, 9.0], 1.0, Word.AGREE),
        ({}, [None], None, Word.NOT_MEASURED),
    ],
)
def test_verdicts(fields: dict[str, object], values: list[float | None], number: float | None, word: Word) -> None:
    finding = measured(checks(**fields), values)
    assert (finding.measured, finding.word) == (number, word)


def test_what_failed_says_why() -> None:
    assert measured(checks(), [None]).remark == "the guest's kernel panicked"


def test_the_page_hides_nothing() -> None:
    unmeasured = checks(sides=[], not_measured="no such machine")
    findings = [
        measured(checks(), [2.0]),
        measured(checks(seeds=3), [0.5, 1.0, 9.0]),
        *validation.judge(unmeasured, {}, Outcome(results={}, failures=[], interrupted=False)),
    ]
    page = validation.page(findings, [("suite", invariance.Invariance(kind="window", rows=[], lost=2))])
    assert "1 agree, 1 **disagree**, 1 not measured" in page
    assert "| 0.9 … 1.1 | 1 (0.5 … 9) | agree |" in page
    assert "| closed form | A check | something | 0.9 … 1.1 | 2 | **disagree** |" in page
    assert "Not measured: no such machine." in page
    assert "Of 0 rows, 0 show" in page
    assert "2 cells were not measured in both." in page


def test_sides_differ_in_what_they_say() -> None:
    first, second = validation.cells(checks(sides=[SIDE, SIDE | {"quantum_ns": 2500, "speed": 50}]))["A check"][0]
    assert (first.machine.clock.quantum_ns, second.machine.clock.quantum_ns) == (1_000, 2500)
    assert first.key() != second.key()


def test_a_check_is_measured_or_says_why_not() -> None:
    with pytest.raises(ValueError, match="check 'A check': give either sides or not_measured"):
        checks(not_measured="but it is")


def test_the_shipped_file_has_every_kind_and_a_control_that_must_fail(tmp_path: Path) -> None:
    shipped = validation.load()
    assert {check.kind for check in shipped.checks} == set(get_args(get_type_hints(validation.Check)["kind"]))
    assert any(check.must_fail for check in shipped.checks)
    assert all(experiment.load(name).workloads for name in (shipped.windows, shipped.quanta))
    assert len({check.name for check in shipped.checks}) == len(shipped.checks)
    (tmp_path / "mine.toml").write_text("[defaults]\n")
    with pytest.raises(HeddleError, match=r"mine\.toml"):
        validation.load(tmp_path / "mine.toml")
