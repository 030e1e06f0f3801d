"""`results.json`: the list of cells that a run measured, and nothing else."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from heddle_lab import files, provenance
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results
from heddle_lab.tomlfile import Model
from heddle_lab.workload import Value

NAME = "results.json"

ABOUT = "run.json"
"""beside it: what the report's page says of the run as a whole"""

WALL_METRIC = "wall_s"
"""the one metric that differs between two runs of the same cell; never in tables"""


class CellResult(Model):
    """One measured cell as it stands in the file."""

    machine: str
    kernel: str
    sched: str
    workload: str
    params: dict[str, Value]
    seed: int
    metrics: dict[str, int | float]
    counters: dict[str, Any]
    """differences of the kernel's counters over the measured step"""
    provenance: dict[str, Any]


class About(Model):
    """A run as a whole."""

    title: str
    command: str
    """what was typed"""


def from_cell(cell: Cell, results: Results) -> CellResult:
    """Return what the file says of a cell.

    Raises:
        HeddleError: the output lacks a metric.
    """
    measured = results.step(cell.workload.metrics[0].step)
    metrics: dict[str, int | float] = {"elapsed_ns": measured.elapsed_ns}
    metrics |= cell.workload.measure(results, cell.params, cell.machine)
    if isinstance(measured.counters.get("switches"), int):
        metrics["switches"] = measured.counters["switches"]
    return CellResult(
        machine=cell.machine.name,
        kernel=cell.kernel.name,
        sched=cell.scheduler.name,
        workload=cell.workload.name,
        params=cell.params,
        seed=cell.seed,
        metrics=metrics | {"virtual_ns": results.virtual_ns, WALL_METRIC: results.wall_s},
        counters=measured.counters,
        provenance=provenance.of_cell(cell),
    )


_FILE = TypeAdapter(list[CellResult])


def write(folder: Path, cells: list[CellResult]) -> Path:
    """Write the file into a folder, which is made; it is whole or absent. Return its path.

    Raises:
        HeddleError: the disk is full or not writable.
    """
    path = folder / NAME
    text = json.dumps(_FILE.dump_python(cells, mode="json"), indent=1, ensure_ascii=False)
    files.write_text(path, text + "\n")
    return path


def read(folder: Path) -> list[CellResult]:
    """Read the cells of a folder (or of a file).

    Raises:
        HeddleError: there is no such file or it is not what this module writes.
    """
    path = folder / NAME if folder.is_dir() else folder
    try:
        return _FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}; give a folder that `heddle run` wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise HeddleError(f"{path}: {key}: {first['msg']}" if key else f"{path}: {first['msg']}") from error


def about(folder: Path) -> About:
    """Read what `run.json` says; a folder without it is named by its path."""
    try:
        return About.model_validate_json((folder / ABOUT).read_bytes())
    except (OSError, ValidationError):
        return About(title=str(folder), command=f"bin/heddle report {folder}")
