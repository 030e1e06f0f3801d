"""`results.json`: the list of cells that a run measured, and nothing else."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError, field_validator

from heddle_lab import files, provenance, tracing
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.measures import lines, switches
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
    """of the run; a variant may have its own"""
    variant: str
    """the side of the comparison: the variant's name, or the scheduler's if that is all that differs"""
    sched: str
    workload: str
    params: dict[str, Value]
    """of the run; a variant may have its own values"""
    seed: int
    variation: str = ""
    """how the machine's model was varied for `--robust`; empty: not at all"""
    metrics: dict[str, int | float]
    latencies_ns: list[int] = []
    """wakeup to run, at each of `tracing.QUANTILES`; empty without a traced twin"""
    counters: dict[str, Any]
    """differences of the kernel's counters over the measured step"""
    provenance: dict[str, Any]

    @field_validator("variant")
    @classmethod
    def _has_a_name(cls, name: str) -> str:
        if not name:
            raise ValueError("of an older heddle, where it was something else; run its command again")
        return name


class About(Model):
    """A run as a whole."""

    title: str
    command: str
    """what was typed"""
    topologies: dict[str, list[dict[str, Any]]] = {}
    """machine -> its CPUs as the guest saw them: `cpu`, `core`, `llc`, `node`, `siblings`"""
    looks: list[int] = []
    """numbers of pairs at which the comparison was looked at while seeds were added; none: once, at the end"""
    pages: list[str] = []
    """pages that show the table, as seen from the folder"""
    timelines: dict[str, str] = {}
    """drawn cells: name of the files, an SVG and one for ui.perfetto.dev, without suffix -> what they show"""


def from_cell(cell: Cell, results: Results, traced: Results | None = None) -> CellResult:
    """Return what the file says of a cell.

    Args:
        cell: the cell.
        results: what it reported.
        traced: what its traced twin reported; none: there is no twin.

    Raises:
        HeddleError: the output lacks a metric, or the trace lacks events.
    """
    measured = results.step(cell.measured_step)
    named = {metric.name for metric in cell.workload.metrics}
    own = cell.workload.measure(results, cell.values, cell.machine)
    metrics: dict[str, int | float] = {"elapsed_ns": measured.elapsed_ns}
    if "switches" in measured.counters:
        metrics["switches"] = measured.counters["switches"]
    if "interrupts" in measured.counters:
        metrics["ipis"] = switches.ipis(measured.counters["interrupts"])
    metrics |= lines.transfers_per_switch(results.clock)
    flags, judged, latencies = [], {}, []
    if traced:
        # One that the workload leaves out of this cell is not the tracepoints' of the same name.
        seen = tracing.measure(traced, cell.job(), cell.measured_step, cell.machine)
        metrics |= {name: value for name, value in seen.items() if name not in named}
        metrics[tracing.PERTURBATION] = traced.step(cell.measured_step).elapsed_ns / measured.elapsed_ns - 1
        judged = {
            name: {"unit": about.unit, "better": about.better}
            for name, about in tracing.METRICS.items()
            if about.judged and name in metrics
        }
        latencies = tracing.latency_quantiles(traced, cell.measured_step)
        flags.append("--trace")
    if cell.variation:
        flags.append("--robust")
    return CellResult(
        machine=cell.machine.name,
        kernel=cell.kernel.name,
        variant=cell.contestant.name,
        sched=cell.scheduler.name,
        workload=cell.workload.name,
        params=cell.params,
        seed=cell.seed,
        variation=cell.variation,
        metrics=metrics | own | {"virtual_ns": results.virtual_ns, WALL_METRIC: results.wall_s},
        latencies_ns=latencies,
        counters=measured.counters,
        provenance=provenance.of_cell(cell, flags, judged),
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


def write_about(folder: Path, about: About) -> None:
    """Write `run.json`.

    Raises:
        HeddleError: the disk is full or not writable.
    """
    files.write_text(folder / ABOUT, about.model_dump_json(indent=1) + "\n")


def find(cells: list[CellResult], wanted: dict[str, Any], params: dict[str, Value]) -> CellResult:
    """Return the one cell with some values.

    Args:
        cells: where to look; variations of the model are passed over.
        wanted: field -> value, none: any.
        params: parameters that it has, among others.

    Raises:
        HeddleError: there is none, or there are several; says in what they differ.
    """
    asked = {name: value for name, value in wanted.items() if value is not None}
    found = [
        cell
        for cell in cells
        if not cell.variation
        and all(getattr(cell, name) == value for name, value in asked.items())
        and params.items() <= cell.params.items()
    ]
    if len(found) == 1:
        return found[0]
    what = ", ".join(f"{name} {value}" for name, value in {**asked, **params}.items())
    if not found:
        raise HeddleError(f"no cell has {what}")
    first, other = found[:2]
    fields = [name for name in ("machine", "kernel") if getattr(first, name) != getattr(other, name)]
    fields += [f"param {name}" for name in first.params if first.params[name] != other.params.get(name)]
    raise HeddleError(f"{len(found)} cells have {what}: add --{fields[0] if fields else 'variant'}")
