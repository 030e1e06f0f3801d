"""What the laboratory claims about itself, measured: `validation.toml` in, a page of verdicts out.

The bounds stand in the file before anything is measured. What cannot be measured here says so, and a check that must
fail shows that a check can.
"""

import re
import statistics
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from heddle_lab import experiment, invariance, kernels, machine, paths, provenance, tomlfile, units, variant
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results
from heddle_lab.runner import Outcome
from heddle_lab.tomlfile import Model
from heddle_lab.workload import Metric, Workload

FILE = paths.LAB / "validation.toml"
PAGE = paths.REPOSITORY / "docs" / "validation.md"

_STEP = "measured"


class Word(StrEnum):
    """The verdicts."""

    AGREE = "agree"
    DISAGREE = "**disagree**"
    NOT_MEASURED = "not measured"


class Defaults(Model):
    """What a side is unless it says otherwise."""

    machine: str
    kernel: str
    sched: str


class Side(Model):
    """One boot with one measured program."""

    argv: Annotated[list[str], Field(min_length=1)]
    machine: str | None = None
    kernel: str | None = None
    sched: str | None = None
    quantum_ns: int | None = None
    speed: int | None = None
    """instructions per 100 ns, of all CPUs"""
    cgroup: str | None = None
    cgroup_files: dict[str, str] = {}
    """of that cgroup, such as `cpu.max`"""
    write: dict[str, str] = {}
    """files of /proc or /sys to write first"""


class Check(Model):
    """A claim, the bounds within which it holds, and how to measure it."""

    name: str
    kind: Literal["closed form", "Q-invariance", "negative control", "published sign", "must not reproduce"]
    claim: str
    source: str
    accept: tuple[float, float]
    value: str = ""
    """expression over the program's JSON, `elapsed_ns` and `switches`"""
    sides: Annotated[list[Side], Field(max_length=2)] = []
    """two: their ratio counts"""
    seeds: Annotated[int, Field(ge=1)] = 1
    must_fail: bool = False
    """agrees if what is measured lies outside of the bounds"""
    not_measured: str = ""
    """why there are no sides"""

    @model_validator(mode="after")
    def _measured_or_not(self) -> "Check":
        if bool(self.sides) == bool(self.not_measured):
            raise ValueError(f"check '{self.name}': give either sides or not_measured")
        return self


class Checks(Model):
    """The file."""

    windows: str
    """the experiment whose rows are compared with those at longer windows"""
    quanta: str
    """likewise, at a finer quantum"""
    pairs: Annotated[int, Field(ge=1)]
    """seeds 1..N of both: of ratios that are compared with one another, not judged, few say enough"""
    defaults: Defaults
    checks: list[Check]

    @property
    def variations(self) -> list[tuple[str, invariance.Kind, list[invariance.Planned]]]:
        """Names of experiments, how each is varied, and its cells.

        Raises:
            HeddleError: a name is unknown, or a workload does not say what its window is.
        """
        named: list[tuple[str, invariance.Kind]] = [(self.windows, "window"), (self.quanta, "quantum")]
        return [
            (name, kind, invariance.plan(experiment.load(name).model_copy(update={"seeds": self.pairs}), kind))
            for name, kind in named
        ]


class Finding(Model):
    """A check with what came of it."""

    check: Check
    measured: float | None
    word: Word
    remark: str
    """why it was not measured"""
    of_seeds: list[float] = []
    """what each seed gave; `measured` is their median"""


def load(path: Path = FILE) -> Checks:
    """Read the checks.

    Raises:
        HeddleError: the file is wrong.
    """
    return tomlfile.load(path, Checks)


def cells(checks: Checks) -> dict[str, list[list[Cell]]]:
    """Return the cells of each check that is measured, by its name: a list for each seed, of each side.

    Raises:
        HeddleError: a machine, kernel or scheduler is unknown.
    """
    return {
        check.name: [
            [_cell(check, side, checks.defaults, seed) for side in check.sides] for seed in range(1, check.seeds + 1)
        ]
        for check in checks.checks
        if check.sides
    }


def _cell(check: Check, side: Side, defaults: Defaults, seed: int) -> Cell:
    box = machine.load(side.machine or defaults.machine)
    clock = box.clock.model_dump()
    clock |= {"quantum_ns": side.quantum_ns} if side.quantum_ns else {}
    clock |= {"speed": side.speed} if side.speed else {}
    steps: list[dict[str, Any]] = [
        {"name": f"write {path}", "action": {"kind": "write", "path": path, "value": value}}
        for path, value in side.write.items()
    ]
    steps += [
        {"name": f"set {file}", "action": {"kind": "cgroup-set", "cgroup": side.cgroup, "file": file, "value": value}}
        for file, value in side.cgroup_files.items()
    ]
    steps.append({"name": _STEP, "argv": side.argv, "cgroup": side.cgroup or ""})
    return Cell(
        machine=box.model_copy(update={"clock": machine.Clock.model_validate(clock)}),
        kernel=kernels.find(side.kernel or defaults.kernel),
        contestant=variant.of_scheduler(side.sched or defaults.sched),
        workload=Workload(
            name=re.sub("[^a-z0-9]+", "-", check.name.lower()).strip("-"),
            summary=check.claim,
            source=check.source,
            steps=steps,
            metrics=[Metric(name=check.name, step=_STEP, unit="", better="lower", value=check.value)],
        ),
        params={},
        seed=seed,
    )


def judge(checks: Checks, planned: dict[str, list[list[Cell]]], outcome: Outcome) -> list[Finding]:
    """Return the verdict of every check."""
    errors = {failure.cell: failure.error for failure in outcome.failures}
    return [_finding(check, planned.get(check.name, []), outcome.results, errors) for check in checks.checks]


def _finding(check: Check, seeds: list[list[Cell]], results: dict[str, Results], errors: dict[str, str]) -> Finding:
    if check.not_measured:
        return Finding(check=check, measured=None, word=Word.NOT_MEASURED, remark=check.not_measured)
    try:
        values = [_value(sides, results) for sides in seeds]
    except (HeddleError, KeyError) as error:
        remark = next((errors[cell.label] for sides in seeds for cell in sides if cell.label in errors), str(error))
        return Finding(check=check, measured=None, word=Word.NOT_MEASURED, remark=remark)
    measured = statistics.median(values)
    low, high = check.accept
    agrees = (low <= measured <= high) != check.must_fail
    word = Word.AGREE if agrees else Word.DISAGREE
    return Finding(check=check, measured=measured, word=word, remark="", of_seeds=values)


def _value(sides: list[Cell], results: dict[str, Results]) -> float:
    numbers = []
    for cell in sides:
        found = results[cell.key()]
        names = {"switches": int(found.step(_STEP).counters.get("switches", 0))}
        numbers.append(float(cell.workload.metrics[0].read(found.step(_STEP), dict(names))))
    return numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]


def page(findings: list[Finding], varied: list[tuple[str, invariance.Invariance]]) -> str:
    """Return the page in Markdown.

    Args:
        findings: what came of the checks.
        varied: the name of each experiment that was varied, and what came of it.
    """
    count = {word: sum(finding.word is word for finding in findings) for word in Word}
    tally = ", ".join(f"{number} {word.value}" for word, number in count.items())
    lines = [
        "# Validation",
        "",
        "Written by `bin/heddle validate`; the bounds stand in [lab/validation.toml](../lab/validation.toml) and were",
        "there before anything was measured. What the laboratory claims, from the firm to the weak: the same bits on",
        "any host; invariants (starvation, work conservation, fairness); counts; queueing times of 20 quanta and more;",
        "the sign and rough size of a difference between two schedulers. It claims no absolute microseconds, nothing",
        "below a quantum, nothing that comes from frequency, turbo, memory bandwidth or energy.",
        "",
        f"Of {len(findings)} checks: {tally}. Of several seeds the median counts; beside it the least and the largest.",
        "",
        "| kind | check | claim | accepted | measured | verdict |",
        "| --- | --- | --- | --- | --: | --- |",
        *(_line(finding) for finding in findings),
        "",
        *(line for experiment, found in varied for line in _invariance(experiment, found)),
        "## Sources, and why something was not measured",
        "",
        *(f"- *{one.check.name}*: {one.check.source}.{_because(one)}" for one in findings),
        "",
        f"Commit {provenance.commit() or 'unknown'}.",
    ]
    return "\n".join(lines) + "\n"


def _invariance(experiment: str, found: invariance.Invariance) -> list[str]:
    return [
        f"## {found.kind.capitalize()} invariance",
        "",
        f"Each row of the experiment [{experiment}](../lab/experiments/{experiment}.toml), as it is and varied.",
        *invariance.section(found),
        "",
    ]


def _line(finding: Finding) -> str:
    check = finding.check
    low, high = (units.digits(bound) for bound in check.accept)
    outside = "outside " if check.must_fail else ""
    bounds = f"{outside}{low} … {high}" if check.sides else ""
    measured = "" if finding.measured is None else f"{finding.measured:.4g}"
    if len(finding.of_seeds) > 1:
        measured += f" ({min(finding.of_seeds):.4g} … {max(finding.of_seeds):.4g})"
    return f"| {check.kind} | {check.name} | {check.claim} | {bounds} | {measured} | {finding.word.value} |"


def _because(finding: Finding) -> str:
    return f" Not measured: {finding.remark}." if finding.word is Word.NOT_MEASURED else ""
