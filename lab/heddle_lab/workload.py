"""Workloads: programs to run in the guest and how their output becomes metrics."""

import base64
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
import jinja2.meta
import zstandard
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, model_validator

from heddle_lab import hashing, hostfiles, image, paths, payload, tomlfile
from heddle_lab.errors import HeddleError
from heddle_lab.fidelity import Fidelity
from heddle_lab.job import Step
from heddle_lab.machine import Machine
from heddle_lab.measures import latency, packing
from heddle_lab.results import Results, StepResult
from heddle_lab.tomlfile import Model

Value = int | float | str
"""a parameter's value"""


_TIMES = frozenset({"s", "sec", "seconds", "ms", "msec", "us", "µs", "usec", "nsec"})
"""units that a metric may not have, so that all times of a table are of one kind"""

_PERCENTILE = re.compile(r"\.p(\d+)$")
"""ends the name of a metric that is a percentile: its digits, behind the point of a fraction"""


class Parameter(Model):
    """A knob of a workload; `--param NAME=VALUE` turns it."""

    default: Value
    unit: str
    summary: str
    minimum: float | None = None
    """smallest value of a number; none: anything above 0"""
    choices: list[str] | None = None
    """the words that a text may be; none: any"""

    def allows(self, value: Value) -> bool:
        """Tell whether a value of the default's type is in range."""
        if isinstance(value, str):
            return self.choices is None or value in self.choices
        return math.isfinite(value) and (value > 0 if self.minimum is None else value >= self.minimum)

    def range(self) -> str:
        """Return what `allows` allows, in words."""
        if self.choices is not None:
            return " or ".join(self.choices)
        return "above 0" if self.minimum is None else f"at least {self.minimum:g}"

    @model_validator(mode="after")
    def _check(self) -> "Parameter":
        if not self.allows(self.default):
            mend = "" if self.minimum is not None or self.choices is not None else "; `minimum` sets another range"
            raise ValueError(f"the default, {self.default}, is out of range: it is to be {self.range()}{mend}")
        return self


class Metric(Model):
    """A number found in a step's outcome."""

    name: str
    step: str
    """the step that yields it"""
    unit: str
    better: Literal["higher", "lower"]
    regex: str | None = None
    """its group, a number, in the first match in stdout; with `value`, all matches are there as `matches`"""
    value: str | None = None
    """expression over `elapsed_ns`, the parameters, `cpus` and `best_speeds` (instructions per 100 ns that so many
    tasks can do at once on the best places, from none to `cpus`), and over `matches` if there is a regex, else over
    the JSON object on stdout: `count * 1e9 / elapsed_ns`, `matches | sum`, `latency_ns.p50`,
    `histograms | percentile(99)` of objects from bucket to count"""
    samples: str | None = None
    """of a percentile, that is a metric called `.p50`, `.p99` and so on: how many samples it is of, an expression over
    what `value` may use. Where fewer than `latency.BEYOND` of them lie beyond it, the metric is left out; none: it is
    reported however few they are"""
    scale: float = 1.0
    """multiplies the number so that it is in `unit`"""
    resolution: Annotated[float, Field(gt=0)] | None = None
    """step to which the number is known, in `unit`, such as 1000 for a time in ns that was printed in whole us; none:
    the largest power of ten that divides all values of a row"""
    judged: bool | str = True
    """compared between schedulers, always or where an expression over the parameters is true; else only recorded"""
    primary: bool | str = False
    """the one metric by which a point is judged, always or where an expression over the parameters is true"""
    when: str = "true"
    """an expression over what `value` may use: where it is false, there was nothing to measure, and the metric is left
    out"""

    @model_validator(mode="after")
    def _check(self) -> "Metric":
        if self.unit in _TIMES:
            raise ValueError(f"metric '{self.name}': unit '{self.unit}': a time is in ns; `scale` converts")
        try:
            if self.regex is not None and re.compile(self.regex).groups != 1:
                raise ValueError(f"metric '{self.name}': the regex needs one group, the number")
            for expression in (self.value, self.samples, self.judged, self.primary, self.when):
                _TEMPLATES.compile_expression(str(expression or 0))
        except (re.error, jinja2.TemplateError) as error:
            raise ValueError(f"metric '{self.name}': {error}") from error
        if self.samples is not None and not _PERCENTILE.search(self.name):
            raise ValueError(f"metric '{self.name}': `samples` says of how many a percentile is, and only a percentile")
        return self

    def fingerprint(self) -> str:
        """Return the hash of how the number is found: results of two ways to find it are not to be compared."""
        return hashing.of_data(
            self.model_dump(exclude={"judged", "primary", "resolution", "samples"}, exclude_defaults=True)
        )

    def about(self) -> dict[str, Any]:
        """Return what a result says of the metric, for comparisons."""
        resolution = {} if self.resolution is None else {"resolution": self.resolution}
        return {"unit": self.unit, "better": self.better, "sha256": self.fingerprint(), **resolution}

    def is_judged(self, params: dict[str, Value]) -> bool:
        """Tell whether schedulers are compared by it.

        Args:
            params: values of all parameters of the workload.
        """
        return _holds(str(self.judged), params)

    def is_there(self, step: StepResult, names: Mapping[str, Any]) -> bool:
        """Tell whether the step had anything of the kind to measure, and enough of it for a percentile.

        Args:
            step: the finished step.
            names: what expressions may use beside the program's output.

        Raises:
            HeddleError: the output lacks what decides it.
        """
        try:
            there = _holds(self.when, _visible(self.when, step, names))
        except jinja2.UndefinedError as error:
            raise HeddleError(f"metric '{self.name}': when: {error} in the output of step '{step.name}'") from None
        return there and self._has_samples(step, names)

    def _has_samples(self, step: StepResult, names: Mapping[str, Any]) -> bool:
        """Tell whether enough samples lie beyond a percentile; of any other metric, one is enough."""
        match = _PERCENTILE.search(self.name)
        if match is None or self.samples is None:
            return True
        count = self._number(self.samples, step, names)
        if count is None:
            raise HeddleError(
                f"metric '{self.name}': no number at '{self.samples}' in the output of step '{step.name}'"
            )
        part = Fraction(int(match[1]), 10 ** len(match[1]))
        return int(count) - math.ceil(int(count) * part) >= latency.BEYOND

    def read(self, step: StepResult, names: Mapping[str, Any]) -> int | float:
        """Return the number; without a source it is the step's virtual time, exact to the ns.

        Args:
            step: the finished step.
            names: what expressions may use beside the program's output.

        Raises:
            HeddleError: the output has no such number.
        """
        found: float | None = step.elapsed_ns
        if self.value is not None or self.regex is not None:
            found = self._number(self.value or "matches[0]", step, names)
        if found is None:
            raise HeddleError(
                f"metric '{self.name}': no number at '{self.regex or self.value}' in the output of step '{step.name}'"
            )
        number = found * self.scale
        return int(number) if number.is_integer() else number

    def _number(self, expression: str, step: StepResult, names: Mapping[str, Any]) -> float | None:
        """Return the value of an expression over what `value` may use; none if the output lacks it."""
        known = {**names, "elapsed_ns": step.elapsed_ns}
        try:
            if self.regex is None:
                return float(_evaluate(expression, _visible(expression, step, known)))
            matches = [float(match) for match in re.findall(self.regex, step.stdout, re.MULTILINE)]
            return float(_evaluate(expression, known | {"matches": matches})) if matches else None
        except (TypeError, ValueError):
            return None


class Workload(Model):
    """A workload, one TOML file each under `workloads/`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    source: str
    """where the program comes from"""
    layers: list[str] = []
    """image layers with the programs, beside the base"""
    packages: list[str] = []
    """Debian packages with the programs; what they need comes with them"""
    files: list[str] = []
    """files of the host, `HOST[:GUEST]` each: see `hostfiles.named`; paths are seen from this file's folder"""
    programs: list[str] = []
    """programs of the laboratory that only some guests are given, in /usr/bin"""
    contents: dict[str, str] = {}
    """files of the guest that stand here: path -> content, by zstd and in base64"""
    params: dict[str, Parameter] = {}
    steps: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """job steps whose strings are templates over the parameters and `cpus`, `llcs`, `seed`, and `content(PATH)`,
    a file of the host; a step with `when`, an expression over the same names, is left out where that is false"""
    metrics: Annotated[list[Metric], Field(min_length=1)]
    window: str | None = None
    """the parameter that says how long is measured, or how much: twice its value is twice the window"""
    fidelity: Fidelity | None = None
    """of a recorded load: how its replay compares with its trace; none: it was not recorded"""

    @model_validator(mode="after")
    def _metrics_have_steps(self) -> "Workload":
        names = [step.get("name") for step in self.steps]
        for metric in self.metrics:
            if metric.step not in names:
                raise ValueError(f"metric '{metric.name}' names no step of this workload: '{metric.step}'")
            for key, expression in (("judged", metric.judged), ("primary", metric.primary)):
                if unknown := sorted(_needs(str(expression)) - self.params.keys()):
                    raise ValueError(f"metric '{metric.name}': {key}: no parameter '{', '.join(unknown)}'")
        if self.window is not None and isinstance(getattr(self.params.get(self.window), "default", ""), str):
            raise ValueError(f"window: no parameter '{self.window}' that is a number")
        try:
            self.primary({name: parameter.default for name, parameter in self.params.items()})
        except HeddleError as error:
            raise ValueError(str(error)) from error
        return self

    def primary(self, params: dict[str, Value]) -> str | None:
        """Return the name of the metric by which a point is judged; none if the point is not judged.

        The only metric of a point need not say that it is primary.

        Args:
            params: values of all parameters.

        Raises:
            HeddleError: no metric is primary with these values, or several are.
        """
        judged = [metric for metric in self.metrics if metric.is_judged(params)]
        first = [metric.name for metric in judged if _holds(str(metric.primary), params)]
        found = first or [metric.name for metric in judged]
        if len(found) > 1:
            many = "several metrics are primary" if first else "no metric is primary"
            raise HeddleError(f"{many}: write `primary = true` in exactly one [[metrics]] ({', '.join(found)})")
        return found[0] if found else None

    def guest_files(self) -> payload.Files:
        """Return what the guest is given beside its image.

        Raises:
            HeddleError: a program is not built, or a file's content is damaged.
        """
        programs = {f"/usr/bin/{name}": (0o755, paths.guest_program(name).read_bytes()) for name in self.programs}
        return programs | {path: (0o644, self._unpacked(path, content)) for path, content in self.contents.items()}

    def _unpacked(self, path: str, content: str) -> bytes:
        try:
            packed = base64.b64decode(content, validate=True)
            return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        except (ValueError, zstandard.ZstdError) as error:
            raise HeddleError(f"workload '{self.name}': contents: {path}: {error}: record it again") from error

    def judged_by(self, name: str) -> "Workload":
        """Return this workload with another primary metric.

        Raises:
            HeddleError: it has no such metric.
        """
        if name not in (metric.name for metric in self.metrics):
            known = ", ".join(metric.name for metric in self.metrics)
            raise HeddleError(f"workload '{self.name}' has no metric '{name}'; known: {known}")
        only = {"primary": True, "judged": True}
        metrics = [
            metric.model_copy(update=only if metric.name == name else {"primary": False}) for metric in self.metrics
        ]
        return self.model_copy(update={"metrics": metrics})

    def fingerprint(self) -> dict[str, Any]:
        """Return what of this workload can change a result: all but what it is called and where it is from."""
        return self.model_dump(exclude={"name", "summary", "source", "window", "fidelity"})

    def sha256(self) -> str:
        """Return the hash of what can change a result."""
        return hashing.of_data(self.fingerprint())

    def mismatch(self) -> str:
        """Return why results of a recorded load say nothing of the machine that it is from; empty if they do."""
        if self.fidelity:
            return self.fidelity.mismatch(self.sha256())
        programs = [" ".join(step.get("argv", [])[:2]) for step in self.steps]
        is_replay = any(name.startswith(("heddle-replay ", "heddle-load replay")) for name in programs)
        return Fidelity().mismatch("") if is_replay else ""

    def with_more(self, packages: list[str], files: list[str]) -> "Workload":
        """Return this workload with more packages and files for its guests."""
        return self.model_copy(update={"packages": [*self.packages, *packages], "files": [*self.files, *files]})

    def userland(self) -> tuple[str, ...]:
        """Return the layers of the guest's image, beside the base.

        Raises:
            HeddleError: there is no such package, or it cannot be downloaded.
        """
        return (*self.layers, *image.of_packages(tuple(self.packages)))

    def host_files(self) -> hostfiles.HostFiles:
        """Return the files that the guest is given, with the libraries that they need.

        Raises:
            HeddleError: a file is missing, or a library that neither guest nor host has.
        """
        files = hostfiles.named(self.files)
        return hostfiles.with_libraries(files, self.userland(), f"workload '{self.name}'") if files else {}

    def parameters(self, given: dict[str, Value]) -> dict[str, Value]:
        """Return the values of all parameters: the given ones over the defaults.

        Raises:
            HeddleError: a parameter is unknown or has a value of the wrong type.
        """
        for name in given:
            if name not in self.params:
                known = ", ".join(self.params) or "none"
                raise HeddleError(f"workload '{self.name}' has no parameter '{name}'; known: {known}")
        return {name: _typed(self.name, name, known, given.get(name)) for name, known in self.params.items()}

    def job_steps(self, params: dict[str, Value], machine: Machine, seed: int) -> list[Step]:
        """Return the steps with all templates filled in.

        Args:
            params: values of all parameters, as `parameters` gives them.
            machine: gives `cpus` and `llcs`.
            seed: gives `seed`.

        Raises:
            HeddleError: a template or a step is wrong; names the workload and the step.
        """
        names = params | _facts(machine) | {"seed": seed}
        steps = []
        for number, step in enumerate(self.steps):
            where = f"workload '{self.name}', step {step.get('name', number)}"
            try:
                if not _holds(str(step.get("when", "true")), names):
                    continue
                filled = _fill({key: value for key, value in step.items() if key != "when"}, names)
            except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
                raise HeddleError(f"{where}: {error}") from error
            steps.append(tomlfile.validate(filled, Step, where))
        return steps

    def measure(self, results: Results, params: dict[str, Value], machine: Machine) -> dict[str, int | float]:
        """Return the metrics of a finished boot.

        Raises:
            HeddleError: a step did not finish or its output lacks a number.
        """
        best_speeds = packing.ideal_speeds(machine.layout(), machine.clock.smt).tolist()
        names = params | _facts(machine) | {"best_speeds": best_speeds}
        steps = [(metric, results.step(metric.step)) for metric in self.metrics]
        return {metric.name: metric.read(step, names) for metric, step in steps if metric.is_there(step, names)}


def load(name: str) -> Workload:
    """Return the workload of a shipped name or of a path to a TOML file.

    Raises:
        HeddleError: it is unknown or its file is wrong.
    """
    path = tomlfile.find(name, paths.WORKLOADS, "workload")
    found = tomlfile.load(path, Workload)
    return found.model_copy(update={"files": [hostfiles.located(text, path.parent) for text in found.files]})


def parse_param(text: str) -> tuple[str, Value]:
    """Return name and value of `KEY=VALUE`; a value that reads as a number is one.

    Raises:
        HeddleError: there is no `=`.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise HeddleError(f"--param {text}: write KEY=VALUE, such as load=1.25")
    return name, number(value)


def number(text: str) -> Value:
    """Return what a parameter's value means: a number if it reads as one, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _content(name: str) -> str:
    """Return the text of a file: a path from here, or one that is shipped beside the workloads."""
    for path in (Path(name), paths.WORKLOADS / name):
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise HeddleError(f"{path}: {error}") from error
    raise HeddleError(f"{name}: no such file")


def _percentile(histograms: Iterable[dict[str, int]], percent: float) -> int:
    """Return the smallest bucket such that at least `percent` % of all counts are in it or in smaller ones.

    Args:
        histograms: bucket, an integer, -> count; of several threads, say.
        percent: 0..100.

    Raises:
        ValueError: there are no counts.
    """
    counts: Counter[int] = Counter()
    for histogram in histograms:
        counts.update({int(bucket): count for bucket, count in histogram.items()})
    if not counts:
        raise ValueError("a percentile of no samples")
    enough = counts.total() * percent / 100
    buckets = sorted(counts)
    sums = itertools.accumulate(counts[bucket] for bucket in buckets)
    return next(bucket for bucket, up_to_it in zip(buckets, sums, strict=True) if up_to_it >= enough)


_TEMPLATES = SandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
_TEMPLATES.filters["percentile"] = _percentile
_TEMPLATES.globals["content"] = _content


def _fill(node: Any, names: dict[str, Value]) -> Any:
    if isinstance(node, str):
        return _TEMPLATES.from_string(node).render(names)
    if isinstance(node, dict):
        return {key: _fill(value, names) for key, value in node.items()}
    if isinstance(node, list):
        return [_fill(value, names) for value in node]
    return node


def _typed(workload: str, name: str, parameter: Parameter, given: Value | None) -> Value:
    """Return a given value as the type of the default; an integer will do for a float, any value for a text."""
    default = parameter.default
    if given is None:
        return default
    if isinstance(default, str):
        given = str(given)
    if isinstance(default, float) and isinstance(given, int):
        given = float(given)
    if type(given) is not type(default):
        kind = {int: "an integer", float: "a number"}[type(default)]
        raise HeddleError(f"workload '{workload}': parameter '{name}' is {kind} ({parameter.unit}), not '{given}'")
    if not parameter.allows(given):
        allowed = parameter.range()
        raise HeddleError(f"workload '{workload}': parameter '{name}' is {allowed} ({parameter.unit}), not {given}")
    return given


def _facts(machine: Machine) -> dict[str, Value]:
    return {"cpus": machine.cpus, "llcs": machine.topology.llcs}


def _visible(expression: str, step: StepResult, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an expression sees: some names, and the step's JSON object if it uses any other."""
    return dict(names) if _needs(expression) <= names.keys() else _json_object(step) | dict(names)


def _json_object(step: StepResult) -> dict[str, Any]:
    try:
        found = json.loads(step.stdout)
    except json.JSONDecodeError as error:
        raise HeddleError(f"step '{step.name}' printed no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise HeddleError(f"step '{step.name}' printed no JSON object but {type(found).__name__}")
    return found


def _holds(condition: str, names: Mapping[str, Any]) -> bool:
    return bool(_TEMPLATES.compile_expression(condition, undefined_to_none=False)(**names))


def _needs(expression: str) -> set[str]:
    """Return the names that an expression uses."""
    return jinja2.meta.find_undeclared_variables(_TEMPLATES.parse("{{" + expression + "}}"))


def _evaluate(expression: str, names: dict[str, Any]) -> Any:
    """Return an expression's value, none if it uses what is not there."""
    try:
        return _TEMPLATES.compile_expression(expression)(**names)
    except (jinja2.UndefinedError, ArithmeticError, TypeError, ValueError):
        return None
