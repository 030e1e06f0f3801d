"""Contrasts on this machine and on the clock: the arithmetic, the file, the page, and the command with a stored run."""

import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import agreement, contrasts, machine
from heddle_lab.agreement import Agreement, Effect, Finding, Word
from heddle_lab.backends.host import Host
from heddle_lab.cli import cli
from heddle_lab.contrasts import Contrast, Contrasts, Measured, Pairs, Run, Side
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import machinefile
from heddle_lab.progress import Reporter

SPIN = ["heddle-load", "spin", "--threads", "1", "--for-ms", "{{ length }}", "--warm-up-ms", "0"]


def contrast(name: str = "spin", miss: str = "", **fields: object) -> Contrast:
    return Contrast.model_validate(
        {
            "name": name,
            "argv": SPIN,
            "metric": "threads[0].iterations",
            "a": {"name": "short", "param": {"length": 10}},
            "b": {"name": "long", "param": {"length": 40}},
            "source": "arithmetic",
            "miss": miss,
        }
        | fields
    )


def wanted(*found: Contrast) -> Contrasts:
    return Contrasts(kernel="7.3", repetitions=2, pairs=2, contrasts=list(found))


def effect(log: float, margin: float = 0.01) -> Effect:
    return Effect(log=log, low=log - margin, high=log + margin)


def finding(host: float, clock: float, margin: float = 0.01, miss: str = "") -> Finding:
    return Finding(contrast=contrast(miss=miss), host=effect(host, margin), clock=effect(clock, margin))


def run_of(**ratios: tuple[float, float]) -> Run:
    """Return a run whose contrasts have these ratios on this machine and on the clock."""

    def pairs(ratio: float) -> Pairs:
        return Pairs(a=[100.0, 102.0, 98.0], b=[100.0 * ratio, 102.5 * ratio, 97.5 * ratio])

    return Run(
        machine='name = "m"\nsummary = "two CPUs"\n',
        guest="6.18.1",
        host="6.18.2",
        commit="0" * 40,
        conditions="Quiet.",
        measured={
            name: Measured(metric="elapsed_ns", unit="ns", host=pairs(host), clock=pairs(clock))
            for name, (host, clock) in ratios.items()
        },
    )


def test_an_effect_is_the_mean_log_ratio_with_students_interval() -> None:
    found = agreement.effect(Pairs(a=[1.0, 2.0, 4.0], b=[2.0, 4.0, 16.0]))
    logs = np.log([2.0, 2.0, 4.0])
    assert found is not None
    assert found.log == pytest.approx(logs.mean())
    margin = 4.302653 * logs.std(ddof=1) / math.sqrt(3)  # Student's t of 2 degrees of freedom
    assert (found.low, found.high) == pytest.approx((logs.mean() - margin, logs.mean() + margin))


def test_one_pair_is_no_effect_and_zero_has_no_ratio() -> None:
    assert agreement.effect(Pairs(a=[1.0], b=[2.0])) is None
    with pytest.raises(HeddleError, match="above zero"):
        agreement.effect(Pairs(a=[1.0, 0.0], b=[1.0, 1.0]))


@pytest.mark.parametrize(
    ("host", "clock", "margin", "word"),
    [
        (0.5, 0.5, 0.01, Word.AGREES),
        (0.5, -0.5, 0.01, Word.SIGN),
        (0.06, -0.01, 0.2, Word.SIGN),  # a large effect's sign counts, whatever the intervals
        (0.04, -0.03, 0.001, Word.SIZE),  # a small one's is a matter of size
        (0.04, -0.03, 0.1, Word.AGREES),
        (0.5, 0.36, 0.0, Word.AGREES),
        (0.5, 0.34, 0.0, Word.SIZE),
        (0.5, 0.34, 0.01, Word.AGREES),
        (0.5, 0.69, 0.0, Word.AGREES),
        (0.5, 0.75, 0.0, Word.SIZE),
        (-0.5, -0.75, 0.0, Word.SIZE),
        (-0.5, -0.4, 0.0, Word.AGREES),
        (0.001, 0.015, 0.0, Word.AGREES),  # neither matters
        (0.001, 0.1, 0.0, Word.SIZE),
    ],
)
def test_misses(host: float, clock: float, margin: float, word: Word) -> None:
    assert finding(host, clock, margin).word is word


def test_what_was_not_measured_is_no_miss() -> None:
    found = Finding(contrast=contrast(), host=effect(1.0))
    assert found.word is Word.NOT_MEASURED
    assert not found.word.is_miss


def test_signs_are_counted_among_large_effects() -> None:
    found = Agreement(findings=[finding(0.5, 0.4), finding(-0.5, 0.4), finding(0.04, -0.04), finding(0.2, 0.2)])
    assert found.signs == (2, 3)
    assert any(fault.startswith("the sign agrees in 2 of 3") for fault in found.faults())


LOGS = [(0.7, 0.5), (-0.3, -0.4), (0.1, 0.2), (1.2, 0.9)]


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
def test_the_slope_of_points_on_a_line_is_the_lines(slope: float) -> None:
    found = Agreement(findings=[finding(log, slope * log) for log, _ in LOGS])
    assert found.slope() == pytest.approx((slope, slope, slope))
    assert found.correlation() == pytest.approx(1)
    assert any("slope" in fault for fault in found.faults()) == (slope != 1)


@given(st.lists(st.booleans(), min_size=len(LOGS), max_size=len(LOGS)))
def test_it_does_not_matter_which_side_is_called_a(turned: list[bool]) -> None:
    as_is, other = (
        Agreement(
            findings=[finding(sign * host, sign * clock) for sign, (host, clock) in zip(signs, LOGS, strict=True)]
        )
        for signs in ([1] * len(LOGS), [-1 if turn else 1 for turn in turned])
    )
    assert other.slope() == pytest.approx(as_is.slope())
    assert other.correlation() == pytest.approx(as_is.correlation())


def test_the_slope_is_one_over_the_slope_of_the_swapped_axes() -> None:
    logs = np.array(LOGS)
    assert agreement.slope_of(logs) == pytest.approx(1 / agreement.slope_of(logs[:, ::-1]))


def test_a_miss_without_an_explanation_misses_the_bar() -> None:
    good = [finding(log, log) for log in (0.5, -0.5, 0.3, 1.0)]
    assert not Agreement(findings=good).faults()
    assert not Agreement(findings=[*good, finding(0.3, 0.1, miss="known")]).faults()
    [fault] = Agreement(findings=[*good, finding(0.3, 0.1)]).faults()
    assert fault == "contrast 'spin': size differs: find out why, and write it as `miss`"


def test_the_page_hides_nothing() -> None:
    asked = wanted(contrast("agreeing"), contrast("turned", miss="cold caches"), contrast("lost"), contrast("third"))
    run = run_of(agreeing=(2.0, 2.1), turned=(1.5, 0.9), third=(1.2, 1.2))
    page = agreement.page(agreement.judge(asked, run), run)
    assert "It is missed: the sign agrees in 2 of 3" in page
    assert "contrast 'lost' was not measured" in page
    assert "| agreeing | heddle-load spin | elapsed_ns | short | long | +0.693 (" in page
    assert "- *turned*: cold caches." in page
    assert "**This run is of one machine: two CPUs.**" in page
    assert "the guests' is 6.18.1" in page


WRONG = {
    "give either workload or argv": {"workload": "hackbench"},
    "both sides are called 'short'": {"b": {"name": "short"}},
    "argv needs a metric": {"metric": ""},
    "slice_us goes with neither nice nor policy": {"a": {"name": "short", "slice_us": 1000, "nice": 1}},
}


@pytest.mark.parametrize("complaint", WRONG)
def test_a_wrong_contrast_is_refused(complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        contrast(**WRONG[complaint])


def test_a_contrast_is_there_once() -> None:
    with pytest.raises(ValueError, match="contrast 'spin' is there twice"):
        wanted(contrast(), contrast())


def test_a_side_sets_its_programs_alone() -> None:
    side = Side(name="one", cpus="0", slice_us=3000, cgroup={"cpu.max": "1 2"})
    wait = {"name": "wait", "action": {"kind": "sleep", "ns": 1}}
    group, same, step = side.steps([wait, {"name": "run", "argv": ["true"]}])
    assert same == wait
    assert group["action"] == {"kind": "cgroup-set", "cgroup": "contrast", "file": "cpu.max", "value": "1 2"}
    assert step["cgroup"] == "contrast"
    assert step["argv"] == ["chrt", "--other", "--sched-runtime", "3000000", "0", "true"]
    assert (step["cpus"], step["nice"], step["policy"]) == ("0", 0, "other")


def test_the_shipped_contrasts_are_many_and_of_many_programs(cache: Path) -> None:
    assert cache
    shipped = contrasts.load().model_copy(update={"kernel": "7.3"})
    programs = {one.load().steps[-1]["argv"][0] if one.argv else one.workload for one in shipped.contrasts}
    assert len(shipped.contrasts) >= 18
    assert len(programs) >= 6
    for backend in get_args(contrasts.BackEnd):
        planned = contrasts.cells(shipped, machine.load("smp-4"), backend)
        for name, pairs in planned.items():
            first, second = pairs[0]
            assert first.point == second.point
            assert first.job() != second.job(), name


def test_the_sides_follow_each_other_and_turn_round(cache: Path) -> None:
    assert cache
    planned = contrasts.cells(wanted(contrast("x"), contrast("y")), machine.load("smp-4"), "clock")
    order = [(cell.workload.name, cell.contestant.name, cell.seed) for cell in contrasts.in_order(planned)]
    assert order == [
        *(("x", "short", 1), ("x", "long", 1), ("y", "short", 1), ("y", "long", 1)),
        *(("x", "long", 2), ("x", "short", 2), ("y", "long", 2), ("y", "short", 2)),
    ]


def test_parameters_of_this_machine_are_its_own(cache: Path) -> None:
    assert cache
    one = contrast(param={"length": 1, "other": 5}, host={"other": 6})
    both: dict[contrasts.BackEnd, int] = {"host": 6, "clock": 5}
    for backend, value in both.items():
        planned = contrasts.cells(wanted(one), machine.load("smp-4"), backend)
        assert planned["spin"][0][0].values == {"length": 10, "other": value}


@pytest.mark.parametrize(
    ("text", "arguments"), [("1\n", "quiet"), ("0\n", "quiet noautogroup"), (None, "quiet noautogroup")]
)
def test_guests_have_autogroups_if_this_machine_has(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, arguments: str
) -> None:
    assert cache
    if text:
        (tmp_path / "switch").write_text(text)
    monkeypatch.setattr(contrasts, "_AUTOGROUPS", tmp_path / "switch")
    asked = wanted(contrast()).model_copy(update={"cmdline": "quiet"})
    [(short, _), *_] = contrasts.cells(asked, machine.load("smp-4"), "clock")["spin"]
    assert short.contestant.variant is not None
    assert short.contestant.variant.cmdline == arguments


def test_this_machine_runs_both_sides(tmp_path: Path) -> None:
    text, _ = machinefile.write(machinefile.read(Path("/")), "this")
    file = tmp_path / "this.toml"
    file.write_text(text)
    here = Host(tmp_path / "run", [str(file)], [])
    planned = contrasts.moved(contrasts.cells(wanted(contrast()), machine.load(str(file)), "host"), here.here)
    how = {"jobs": None, "dask_address": None, "fresh": False, "cold": False}
    ordered = contrasts.in_order(planned)
    with Reporter(len(ordered)) as reporter:
        outcome = here.run(ordered, how, reporter)
    assert not outcome.failures
    found = contrasts.pairs(planned["spin"], outcome.results)
    assert len(found.a) == len(found.b) == 2
    assert all(value > 0 for value in [*found.a, *found.b])


def judged(run: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["fidelity", "--from", str(run), *options], standalone_mode=False)


def test_a_stored_run_is_judged_again(tmp_path: Path) -> None:
    file = tmp_path / "contrasts.toml"
    sides = "\n".join(
        f'{side} = {{ name = "{side}", param = {{ length = {length} }} }}' for side, length in (("a", 1), ("b", 2))
    )
    rows = "\n".join(
        f'[[contrasts]]\nname = "{name}"\nargv = ["true", "{{{{ length }}}}"]\nmetric = "x"\nsource = "test"\n{sides}'
        for name in ("one", "two", "three")
    )
    file.write_text(f'kernel = "6.18"\nrepetitions = 2\npairs = 2\n{rows}')
    run = contrasts.write(tmp_path, run_of(one=(2.0, 2.0), two=(0.5, 0.5), three=(1.3, 1.3)))
    result = judged(run, "--contrasts", str(file), "--page", str(tmp_path / "page.md"))
    assert result.exception is None
    assert result.return_value == 0
    assert "the sign agrees in 3 of the 3" in result.stdout
    assert "It is met." in (tmp_path / "page.md").read_text()
    contrasts.write(tmp_path, run_of(one=(2.0, 2.0), two=(0.5, 2.0), three=(1.3, 1.3)))
    assert judged(run, "--contrasts", str(file)).return_value == 1


def test_a_file_that_no_run_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    assert "`heddle fidelity` writes it" in str(judged(tmp_path / "x.json").exception)
    (tmp_path / "x.json").write_text("{}")
    assert "missing: machine, guest" in str(judged(tmp_path / "x.json").exception)


def test_this_machine_is_calibrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter(["nine rounds"])
    monkeypatch.setattr(contrasts.calibration, "here", lambda: next(measured))
    monkeypatch.setattr(contrasts.calibrated, "apply", lambda text, _, found: (f"{text}# {found}\n", []))
    files = [contrasts.this_machine(tmp_path) for _ in range(2)]
    assert files == [tmp_path / contrasts.MACHINE] * 2
    assert files[0].read_text().endswith("# nine rounds\n")
    assert machine.load(str(files[0])).name == "calibrated"
