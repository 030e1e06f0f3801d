"""`results.json`: the list of cells that a run measured, and nothing else.

What several cells say of their provenance is written once, in `shared` (`sharing`). The key and the job of a cell stand
apart from the rest, which is the same for all seeds.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from heddle_lab import files, provenance, sharing, tracing
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.measures import lines, switches
from heddle_lab.native import conditions
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
    backend: str = "clock"
    """what ran the cell (`backends`)"""
    metrics: dict[str, int | float]
    latencies_ns: list[int] = []
    """wakeup to run, at each of `tracing.QUANTILES`; empty without a traced twin"""
    counters: dict[str, Any]
    """differences of the kernel's counters over the measured step"""
    provenance: dict[str, Any]


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
    metrics |= lines.transfers_per_switch(results.clock) | conditions.metrics(results)
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
    if cell.backend != "clock":
        flags += ["--backend", cell.backend]
    return CellResult(
        machine=cell.machine.name,
        kernel=cell.kernel.name,
        variant=cell.contestant.name,
        sched=cell.scheduler.name,
        workload=cell.workload.name,
        params=cell.params,
        seed=cell.seed,
        variation=cell.variation,
        backend=cell.backend,
        metrics=metrics | own | {"virtual_ns": results.virtual_ns, WALL_METRIC: results.wall_s},
        latencies_ns=latencies,
        counters=measured.counters,
        provenance=provenance.of_cell(cell, flags, judged),
    )


class _File(Model):
    """The file as it is written."""

    format: Literal[2]
    shared: list[Any]
    """parts of the cells' provenance that several have: `{"$": N}` stands for the N-th"""
    cells: list[dict[str, Any]]


_OWN = ("cell", "traced_cell")
"""what in its provenance no two cells share"""


def write(folder: Path, cells: list[CellResult]) -> Path:
    """Write the file into a folder, which is made; it is whole or absent. Return its path.

    A cell, and a shared part, is a line.

    Raises:
        HeddleError: the disk is full or not writable.
    """
    path = folder / NAME
    entries = [cell.model_dump(mode="json", exclude_defaults=True) for cell in cells]
    packed, shared = sharing.pack([_apart(entry["provenance"]) for entry in entries])
    lines = [entry | {"provenance": part} for entry, part in zip(entries, packed, strict=True)]
    files.write_text(path, f'{{"format":2,"shared":{_array(shared)},"cells":{_array(lines)}}}\n')
    return path


def _array(values: list[Any]) -> str:
    inner = ",\n".join(json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in values)
    return f"[\n{inner}\n]" if values else "[]"


def _apart(provenance: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's provenance with what is the cell's own beside `rest`."""
    own = {name: provenance[name] for name in _OWN if name in provenance}
    rest = {name: value for name, value in provenance.items() if name not in _OWN}
    if "job" in rest["inputs"]:
        own["job"] = rest["inputs"]["job"]
        rest["inputs"] = {name: value for name, value in rest["inputs"].items() if name != "job"}
    return own | {"rest": rest}


def _together(apart: dict[str, Any]) -> dict[str, Any]:
    """Return what `_apart` was given."""
    provenance = dict(apart["rest"])
    if "job" in apart:
        provenance["inputs"] = provenance["inputs"] | {"job": apart["job"]}
    return {name: apart[name] for name in _OWN if name in apart} | provenance


def read(folder: Path) -> list[CellResult]:
    """Read the cells of a folder (or of a file).

    Raises:
        HeddleError: there is no such file or it is not what this module writes.
    """
    path = folder / NAME if folder.is_dir() else folder
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, list):
            raise HeddleError(
                f"{path}: results of an older version: run its command again, which measures only what the cache lacks"
            )
        file = _File.model_validate(content)
        provenances = sharing.unpack([entry["provenance"] for entry in file.cells], file.shared)
        return [
            CellResult.model_validate(entry | {"provenance": _together(provenance)})
            for entry, provenance in zip(file.cells, provenances, strict=True)
        ]
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}; give a folder that `heddle run` wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise HeddleError(f"{path}: {key}: {first['msg']}" if key else f"{path}: {first['msg']}") from error
    except (LookupError, TypeError, ValueError) as error:
        raise HeddleError(f"{path}: damaged, or not a file that `heddle run` wrote: {error}") from error


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
