"""What `heddle-calibrate` measured on a machine, and the costs of a machine file that follow from it."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from heddle_lab import files, paths, tomlfile, units
from heddle_lab.errors import HeddleError
from heddle_lab.tomlfile import Model

_LIMIT_S = 600
"""wall seconds that the program may take"""


class Sample(Model):
    """One measurement of one round."""

    name: str
    ns: float
    """of one operation: the low quantile that other load hardly moves"""
    low: float
    high: float
    """ends of its 95 % interval"""
    least: float
    median: float
    samples: int


class Output(Model):
    """What the program prints."""

    version: int = Field(ge=1, le=1)
    cpus: int
    load_average: float
    """when it began"""
    measures: list[Sample]
    stolen: float
    """part of the CPU time that the hypervisor gave to others"""


class Measured(Model):
    """A cost over all rounds."""

    ns: float
    """of the quickest round but one: in slower ones, a hypervisor may have put the CPUs farther apart than it says"""
    low: float
    """of all rounds' intervals"""
    high: float
    rounds: int

    @property
    def about(self) -> str:
        """The interval, for reading."""
        span = f"{units.digits(self.low)} to {units.digits(self.high)} ns"
        return f"{span} in {units.counted(self.rounds, 'round')}"


Costs = Mapping[str, Measured]


def costs(output: Output) -> dict[str, Measured]:
    """Return each measurement by its name, over all rounds.

    Raises:
        HeddleError: the program measured nothing.
    """
    found: dict[str, list[Sample]] = {}
    for sample in output.measures:
        found.setdefault(sample.name, []).append(sample)
    return {
        name: Measured(
            ns=sorted(sample.ns for sample in samples)[:2][-1],
            low=min(sample.low for sample in samples),
            high=max(sample.high for sample in samples),
            rounds=len(samples),
        )
        for name, samples in found.items()
    }


def read(path: Path) -> Output:
    """Read what the program printed on another machine.

    Raises:
        HeddleError: the file cannot be read, or is not the program's.
    """
    return parse(files.read_text(path), str(path))


def parse(text: str, where: str) -> Output:
    """Return what the program printed.

    Raises:
        HeddleError: it is not what the program prints; names `where`.
    """
    try:
        content: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise HeddleError(f"{where}: not the output of heddle-calibrate: {error}") from error
    return tomlfile.validate(content, Output, where)


def here() -> Output:
    """Measure this machine.

    Raises:
        HeddleError: the program is not built, or it fails.
    """
    try:
        done = subprocess.run([paths.calibrate()], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        what = f"heddle-calibrate did not end within {_LIMIT_S} s"
        raise HeddleError(f"{what}: end other programs, and run again") from None
    if done.returncode:
        raise HeddleError(f"heddle-calibrate failed: {done.stderr.strip() or f'exit {done.returncode}'}")
    return parse(done.stdout, "heddle-calibrate")
