"""Contrasts: two ways to run one program under the kernel's own scheduler, on this machine and on the clock.

`fidelity.toml` in, a file of what each side took out. What the two back ends say of them is `agreement`'s. Nothing here
was used to fit the clock's costs: `heddle calibrate` measures single operations.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from heddle_lab import files, kernels, paths, provenance, tomlfile, variant, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import calibrated, calibration, machinefile
from heddle_lab.machine import Machine
from heddle_lab.native import conditions
from heddle_lab.results import Results
from heddle_lab.tomlfile import Model
from heddle_lab.variant import Variant
from heddle_lab.workload import Metric, Parameter, Value, Workload

FILE = paths.LAB / "fidelity.toml"

NAME = "fidelity.json"
"""what a run measured, in its folder"""

MACHINE = "calibrated.toml"
"""this machine with its costs, in the run's folder"""

_STEP, _GROUP = "measured", "contrast"
_AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


class Side(Model):
    """One of the two ways."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    param: dict[str, Value] = {}
    """over those of the contrast"""
    cpus: str | None = None
    """that its programs may use; none: all"""
    nice: Annotated[int, Field(ge=-20, le=19)] = 0
    policy: Literal["other", "batch", "idle"] = "other"
    slice_us: Annotated[int, Field(ge=100, le=100_000)] | None = None
    """that its programs ask the kernel for; none: the kernel's own"""
    cgroup: dict[str, str] = {}
    """control files of a group for its programs, such as `cpu.max`; none: they are in no group of their own"""

    @model_validator(mode="after")
    def _slice_alone(self) -> "Side":
        if self.slice_us and (self.nice or self.policy != "other"):
            raise ValueError(f"side '{self.name}': slice_us goes with neither nice nor policy: chrt would reset them")
        return self

    def steps(self, of_workload: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the steps of a workload with this side's settings."""
        groups = [
            {"name": f"set {file}", "action": {"kind": "cgroup-set", "cgroup": _GROUP, "file": file, "value": value}}
            for file, value in self.cgroup.items()
        ]
        return [*groups, *map(self._set_on, of_workload)]

    def _set_on(self, step: dict[str, Any]) -> dict[str, Any]:
        if "argv" not in step:
            return step
        own: dict[str, Any] = {"nice": self.nice, "policy": self.policy}
        own |= ({"cpus": self.cpus} if self.cpus else {}) | ({"cgroup": _GROUP} if self.cgroup else {})
        wrapper = ["chrt", "--other", "--sched-runtime", str(self.slice_us * 1000), "0"] if self.slice_us else []
        return {**step, **own, "argv": [*wrapper, *step["argv"]]}


class Contrast(Model):
    """One program, two ways to run it, and what is compared."""

    name: str
    workload: str | None = None
    """a shipped one; none: `argv`"""
    argv: list[str] = []
    """a program that prints a JSON object; a template over `param`"""
    metric: str = ""
    """of the workload; empty: its primary one. Of `argv`: an expression over the JSON"""
    param: dict[str, Value] = {}
    """of the workload or of `argv`, on both sides"""
    host: dict[str, Value] = {}
    """the same, on this machine only: hardware executes several no-ops in the time of one instruction on the clock"""
    a: Side
    b: Side
    source: str
    """why the contrast says something"""
    miss: str = ""
    """why the clock's effect is another one than this machine's, found after it was measured"""

    @model_validator(mode="after")
    def _one_program(self) -> "Contrast":
        if bool(self.workload) == bool(self.argv):
            raise ValueError(f"contrast '{self.name}': give either workload or argv")
        if self.argv and not self.metric:
            raise ValueError(f"contrast '{self.name}': argv needs a metric, an expression over what it prints")
        if self.a.name == self.b.name:
            raise ValueError(f"contrast '{self.name}': both sides are called '{self.a.name}'")
        return self

    @property
    def program(self) -> str:
        """What runs, for tables."""
        return self.workload or " ".join(self.argv[:2])

    def load(self) -> Workload:
        """Return the workload that is judged by the contrast's metric.

        Raises:
            HeddleError: it is unknown, or has no such metric.
        """
        if self.workload:
            found = workload.load(self.workload)
            return found.judged_by(self.metric) if self.metric else found
        return Workload(
            name=re.sub("[^a-z0-9]+", "-", self.name.lower()).strip("-"),
            summary=self.name,
            source=self.source,
            params={name: _free(value) for name, value in (self.param | self.a.param | self.b.param).items()},
            steps=[{"name": _STEP, "argv": self.argv}],
            metrics=[Metric(name=self.metric, step=_STEP, unit="", better="lower", value=self.metric)],
        )


def _free(value: Value) -> Parameter:
    """Return a parameter that may be any number or text."""
    return Parameter(default=value, unit="", summary="", minimum=-math.inf)


class Contrasts(Model):
    """The file."""

    kernel: str
    """of the guests, as `--kernel` takes it"""
    cmdline: str = ""
    """arguments of the guests' kernel that make it like this machine's, beside those that can be read here"""
    repetitions: Annotated[int, Field(ge=2)]
    """of each side on this machine"""
    pairs: Annotated[int, Field(ge=2)]
    """seeds of each side on the clock"""
    contrasts: Annotated[list[Contrast], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> "Contrasts":
        names = [contrast.name for contrast in self.contrasts]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"contrast '{twins[0]}' is there twice")
        return self


class Pairs(Model):
    """What the sides of a contrast took on one back end; the i-th values are a pair."""

    a: list[float] = []
    b: list[float] = []


class Measured(Model):
    """What was measured of a contrast; a back end that failed has no pairs."""

    metric: str
    unit: str
    host: Pairs
    clock: Pairs


class Run(Model):
    """What was measured, on what."""

    machine: str
    """the machine file, as text"""
    guest: str
    """release of the guests' kernel"""
    host: str
    """release of this machine's kernel"""
    commit: str
    conditions: str
    """what else went on on this machine, in a sentence"""
    measured: dict[str, Measured]
    """by the contrasts' names"""


def load(path: Path = FILE) -> Contrasts:
    """Read the contrasts.

    Raises:
        HeddleError: the file is wrong.
    """
    return tomlfile.load(path, Contrasts)


def read(path: Path) -> Run:
    """Read what a run measured.

    Raises:
        HeddleError: the file cannot be read, or no run wrote it.
    """
    try:
        content: Any = json.loads(files.read_text(path))
    except json.JSONDecodeError as error:
        raise HeddleError(f"{path}: {error}; `heddle fidelity` writes it") from error
    return tomlfile.validate(content, Run, str(path))


def write(folder: Path, run: Run) -> Path:
    """Write what a run measured into its folder, and return the file."""
    files.write_text(folder / NAME, json.dumps(run.model_dump(), indent=1) + "\n")
    return folder / NAME


def this_machine(folder: Path) -> Path:
    """Return the file of this machine with measured costs; it is measured once and kept in the run's folder.

    Raises:
        HeddleError: this machine cannot be measured, or the folder not be written.
    """
    target = folder / MACHINE
    if not target.is_file():
        text, _ = machinefile.write(machinefile.read(Path("/")), target.stem)
        text, _ = calibrated.apply(text, str(target), calibration.here())
        files.write_text(target, text)
    return target


BackEnd = Literal["host", "clock"]
Sides = tuple[Cell, Cell]
Planned = dict[str, list[Sides]]
"""contrast -> the cells of its two sides, for each seed"""


def cells(wanted: Contrasts, box: Machine, backend: BackEnd) -> Planned:
    """Return the cells of all contrasts.

    Args:
        wanted: the contrasts.
        box: the machine on which both back ends run them.
        backend: whose parameters and number of pairs they get.

    Raises:
        HeddleError: a workload, a parameter, a metric or the kernel is unknown.
    """
    on_host = backend == "host"
    seeds = range(1, (wanted.repetitions if on_host else wanted.pairs) + 1)
    planned: Planned = {}
    for contrast in wanted.contrasts:
        load = contrast.load()
        try:
            params = load.parameters(contrast.param | (contrast.host if on_host else {}))
            cmdline = "" if on_host else f"{wanted.cmdline} {_autogroups()}".strip()
            sides = [_side(side, load, params, cmdline) for side in (contrast.a, contrast.b)]
        except HeddleError as error:
            raise HeddleError(f"contrast '{contrast.name}': {error}") from error
        common = {"machine": box, "kernel": kernels.find(wanted.kernel), "params": params}
        planned[contrast.name] = [
            (Cell(**common, **sides[0], seed=seed), Cell(**common, **sides[1], seed=seed)) for seed in seeds
        ]
    return planned


def _autogroups() -> str:
    """Return what makes a guest's kernel group tasks by session only if this machine's does."""
    on = _AUTOGROUPS.is_file() and files.read_text(_AUTOGROUPS).strip() == "1"
    return "" if on else "noautogroup"


def _side(side: Side, load: Workload, params: dict[str, Value], cmdline: str) -> dict[str, Any]:
    """Return the fields of a cell in which the two sides differ."""
    load.parameters(params | side.param)
    settings = Variant(name=side.name, param=side.param, cmdline=cmdline)
    return {
        "contestant": variant.of_variant(settings),
        "workload": load.model_copy(update={"steps": side.steps(load.steps)}),
    }


def moved(planned: Planned, here: Callable[[Cell], Cell]) -> Planned:
    """Return the cells as another back end runs them."""
    return {name: [(here(a), here(b)) for a, b in pairs] for name, pairs in planned.items()}


def in_order(planned: Planned) -> list[Cell]:
    """Return the cells as they are to run, one after the other.

    Seeds are the outermost loop. The two sides of a pair follow each other, in the other order every other time, so
    that what changes slowly changes both alike.
    """
    by_seed = zip(*planned.values(), strict=True)
    return [
        cell
        for number, pairs in enumerate(by_seed)
        for pair in pairs
        for cell in (reversed(pair) if number % 2 else pair)
    ]


def pairs(planned: Sequence[Sides], results: Mapping[str, Results]) -> Pairs:
    """Return the values of those pairs of which both sides were measured.

    Raises:
        HeddleError: a program's output lacks the metric.
    """
    both = [sides for sides in planned if all(cell.key() in results for cell in sides)]
    values = [[_value(cell, results[cell.key()]) for cell in sides] for sides in both]
    return Pairs(a=[a for a, _ in values], b=[b for _, b in values])


def _value(cell: Cell, results: Results) -> float:
    name = _metric(cell).name
    found = cell.workload.measure(results, cell.values, cell.machine)
    if name not in found:
        raise HeddleError(f"{cell.label}: too few samples for {name}: measure longer")
    return float(found[name])


def _metric(cell: Cell) -> Metric:
    name = cell.workload.primary(cell.values)
    return next(metric for metric in cell.workload.metrics if metric.name == name)


def run_of(
    machine_file: str, planned: tuple[Planned, Planned], results: tuple[Mapping[str, Results], Mapping[str, Results]]
) -> Run:
    """Return what was measured.

    Args:
        machine_file: as `--machine` takes it.
        planned: the cells on this machine, and those on the clock.
        results: of both, by the cells' keys.

    Raises:
        HeddleError: a program's output lacks a metric.
    """
    measured = {}
    for name, on_host in planned[0].items():
        metric = _metric(on_host[0][0])
        sides = [pairs(plan[name], found) for plan, found in zip(planned, results, strict=True)]
        measured[name] = Measured(metric=metric.name, unit=metric.unit, host=sides[0], clock=sides[1])
    guest = next(iter(planned[1].values()))[0][0].booted.release
    return Run(
        machine=_text(machine_file),
        guest=guest,
        host=os.uname().release,
        commit=provenance.commit() or "unknown",
        conditions=conditions.summary([conditions.metrics(one) for one in _of(planned[0], results[0])]),
        measured=measured,
    )


def _of(planned: Planned, results: Mapping[str, Results]) -> Iterable[Results]:
    keys = {cell.key() for sides in planned.values() for pair in sides for cell in pair}
    return [results[key] for key in keys if key in results]


def _text(machine_file: str) -> str:
    return files.read_text(tomlfile.find(machine_file, paths.MACHINES, "machine"))
