"""Experiments: which cells to measure, and against what to compare."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Annotated, Any

from pydantic import Field

from heddle_lab import identity, image, kernels, machine, paths, robust, scheduler, stats, tomlfile, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.tomlfile import Model
from heddle_lab.workload import Value

NOWHERE: Mapping[str, str] = {}

DEFAULT_SEEDS = stats.FEWEST
DEFAULT_KERNEL = "7.3"
DEFAULT_MACHINE = "smp-4"


class WorkloadPoint(Model):
    """A workload with values for its parameters; a list is swept."""

    name: str
    params: dict[str, Value | list[Value]] = {}

    def sweep(self) -> list[dict[str, Value]]:
        """Return one set of parameters for each combination of the lists."""
        axes = [value if isinstance(value, list) else [value] for value in self.params.values()]
        return [dict(zip(self.params, values, strict=True)) for values in product(*axes)]


class Experiment(Model):
    """An experiment, one TOML file each under `experiments/`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    machines: Annotated[list[str], Field(min_length=1)]
    kernels: Annotated[list[str], Field(min_length=1)]
    schedulers: Annotated[list[str], Field(min_length=1)]
    """`eevdf`, `scx_heddle` or NAME=COMMAND; the first is the baseline"""
    workloads: Annotated[list[WorkloadPoint], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1, le=1000)] = DEFAULT_SEEDS
    """seeds 1..N, the same for every scheduler"""
    trace: bool = False
    """each cell once more with sched tracepoints recorded, for the measures that need them (`tracing`)"""
    robust: bool = False
    """each cell once more for every variation of the machine's model (`robust`)"""

    def cells(self, origins: Mapping[str, str] = NOWHERE) -> list[Cell]:
        """Return all cells but the traced twins; those that a first look needs most come first.

        Seeds are the outermost loop: after an interruption every comparison has its first pairs. Variations of the
        model come after all seeds of the model itself.

        Args:
            origins: where a field's value was written, such as `mine.toml: machines`, for errors.

        Raises:
            HeddleError: a name is unknown, a file wrong, or a scheduler cannot start in the image.
        """
        with _blaming(origins.get("machines")):
            boxes = identity.once("machine", self.machines, [machine.load(name) for name in self.machines])
        with _blaming(origins.get("kernels")):
            systems = identity.once("kernel", self.kernels, [kernels.find(name) for name in self.kernels])
        with _blaming(origins.get("schedulers")):
            contestants = [scheduler.parse(text) for text in self.schedulers]
            _refuse_twins([contestant.name for contestant in contestants])
            for contestant in contestants:
                contestant.check_options()
        with _blaming(origins.get("workloads")):
            points = self._points()
        for contestant, (load, _) in product(contestants, points):
            contestant.check(tuple(load.layers))
        for load, params in points:
            _refuse_missing_programs(load, params, boxes[0])
        models = [("", box) for box in boxes]
        if self.robust:
            models += [model for box in boxes for model in robust.variants(box).items()]
        cells = [
            Cell(
                machine=box,
                kernel=system,
                scheduler=contestant,
                workload=load,
                params=params,
                seed=seed,
                variant=variant,
            )
            for seed, (variant, box), system, (load, params), contestant in product(
                range(1, self.seeds + 1), models, systems, points, contestants
            )
        ]
        return sorted(cells, key=lambda cell: bool(cell.variant))

    def _points(self) -> list[tuple[workload.Workload, dict[str, Value]]]:
        """Return each workload with each set of all its parameters, once."""
        asked = [point.name for point in self.workloads]
        loads = [workload.load(name) for name in asked]
        identity.once("workload", asked, loads)
        swept = zip(loads, self.workloads, strict=True)
        points = [(load, load.parameters(params)) for load, point in swept for params in point.sweep()]
        for load, params in points:
            _refuse_no_primary(load, params)
        return [point for number, point in enumerate(points) if point not in points[:number]]


@contextmanager
def _blaming(origin: str | None) -> Iterator[None]:
    """Put the place where a value was written before an error that names the value alone."""
    try:
        yield
    except HeddleError as error:
        if origin is None:
            raise
        raise HeddleError(f"{origin}: {error}") from error


def load(name: str) -> Experiment:
    """Return the experiment of a shipped name or of a path to a TOML file.

    Raises:
        HeddleError: it is unknown or its file is wrong.
    """
    return tomlfile.load(tomlfile.find(name, paths.EXPERIMENTS, "experiment"), Experiment)


class Overrides(Model):
    """What the command line says over, or instead of, an experiment's file."""

    machines: list[str] = []
    kernels: list[str] = []
    schedulers: list[str] = []
    workloads: list[str] = []
    params: dict[str, Value] = {}
    seeds: int | None = None
    trace: bool = False
    robust: bool = False

    def origins(self, file: str) -> dict[str, str]:
        """Return where the names were written that an experiment's file gives and the command line does not replace.

        Args:
            file: name or path of the experiment.
        """
        path = tomlfile.find(file, paths.EXPERIMENTS, "experiment")
        own = {"machines": self.machines, "kernels": self.kernels, "schedulers": self.schedulers}
        own["workloads"] = [*self.workloads, *self.params]
        return {field: f"{path}: {field}" for field, given in own.items() if not given}

    def apply(self, base: Experiment | None) -> Experiment:
        """Return the experiment to run.

        Args:
            base: from a file; none: the command line alone describes it.

        Raises:
            HeddleError: without a file, no workload is named; or a parameter fits no workload.
        """
        if base is None:
            base = self._from_nothing()
        points = [WorkloadPoint(name=name) for name in self.workloads] or base.workloads
        changes: dict[str, Any] = {
            "machines": self.machines or base.machines,
            "kernels": self.kernels or base.kernels,
            "schedulers": self.schedulers or base.schedulers,
            "workloads": [self._turn(point) for point in points],
            "seeds": base.seeds if self.seeds is None else self.seeds,
            "trace": self.trace or base.trace,
            "robust": self.robust or base.robust,
        }
        self._refuse_unused(points)
        return tomlfile.validate(base.model_dump() | changes, Experiment, "command line")

    def _from_nothing(self) -> Experiment:
        if not self.workloads:
            known = ", ".join(tomlfile.names(paths.EXPERIMENTS))
            raise HeddleError(f"name an experiment ({known}, or a file) or a --workload")
        return Experiment(
            name="command-line",
            summary="Described on the command line",
            machines=[DEFAULT_MACHINE],
            kernels=[DEFAULT_KERNEL],
            schedulers=[scheduler.EEVDF, scheduler.HEDDLE],
            workloads=[WorkloadPoint(name=name) for name in self.workloads],
        )

    def _turn(self, point: WorkloadPoint) -> dict[str, Any]:
        """Return a point with the parameters from the command line that its workload has."""
        known = workload.load(point.name).params if self.params else {}
        turned = {name: value for name, value in self.params.items() if name in known}
        return {"name": point.name, "params": point.params | turned}

    def _refuse_unused(self, points: list[WorkloadPoint]) -> None:
        loads = [workload.load(point.name) for point in points if self.params]
        for name in self.params:
            if not any(name in load.params for load in loads):
                known = ", ".join(sorted({known for load in loads for known in load.params})) or "none"
                raise HeddleError(f"--param {name}: no workload here has this parameter; known: {known}")


def _refuse_missing_programs(load: workload.Workload, params: dict[str, Value], box: machine.Machine) -> None:
    layers = tuple(load.layers)
    for step in load.job_steps(params, box, seed=1):
        if step.argv and step.argv[0] not in load.programs and not image.has_program(step.argv[0], layers):
            have = ", ".join((image.BASE, *layers))
            raise HeddleError(
                f"workload '{load.name}': step '{step.name}': argv: no program '{step.argv[0]}' in the guest image "
                f"({have}); name its layer in `layers`, or its package in lab/guest/image.toml"
            )


def _refuse_no_primary(load: workload.Workload, params: dict[str, Value]) -> None:
    """Refuse a point without a verdict before it is measured: which metric is primary may depend on parameters."""
    try:
        load.primary(params)
    except HeddleError as error:
        values = ", ".join(f"{name}={value}" for name, value in params.items())
        raise HeddleError(f"workload '{load.name}' with {values}: {error}") from error


def _refuse_twins(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise HeddleError(f"scheduler '{name}' is named twice; give one of them another name: --sched NAME=COMMAND")
