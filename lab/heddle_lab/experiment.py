"""Experiments: which cells to measure, and against what to compare."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Annotated, Any

from pydantic import Field, model_validator

from heddle_lab import (
    hostfiles,
    identity,
    image,
    kernels,
    machine,
    paths,
    payload,
    robust,
    scheduler,
    stats,
    tomlfile,
    variant,
    workload,
)
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.kernels import Kernel
from heddle_lab.tomlfile import Model
from heddle_lab.variant import Contestant, Variant
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
    schedulers: list[str] = []
    """`eevdf`, `scx_heddle` or NAME=COMMAND"""
    variants: list[Variant] = []
    """what else is compared; the first scheduler, or the first variant if there is none, is the baseline"""
    workloads: Annotated[list[WorkloadPoint], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1, le=1000)] = DEFAULT_SEEDS
    """seeds 1..N, the same for every scheduler"""
    trace: bool = False
    """each cell once more with sched tracepoints recorded, for the measures that need them (`tracing`)"""
    robust: bool = False
    """each cell once more for every variation of the machine's model (`robust`)"""
    packages: list[str] = []
    """Debian packages for the guests of all workloads, beside those of each"""
    files: list[str] = []
    """likewise, files of the host: `HOST[:GUEST]`"""

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
        contestants = self._contestants(origins)
        systems = self._systems(contestants, origins)
        with _blaming(origins.get("workloads")):
            points = self._points()
        self._refuse_unused([load for load, _ in points])
        for contestant, (load, _) in product(contestants, points):
            contestant.scheduler.check(load.userland())
        for load, _ in points:
            payload.check(hostfiles.contents(load.host_files()))
        models = [("", box) for box in boxes]
        if self.robust:
            models += [model for box in boxes for model in robust.variations(box).items()]
        cells = [
            Cell(
                machine=box,
                kernel=system,
                contestant=contestant,
                workload=load,
                params=params,
                seed=seed,
                variation=variation,
            )
            for seed, (variation, box), system, (load, params), contestant in product(
                range(1, self.seeds + 1), models, systems, points, contestants
            )
        ]
        for cell in cells:
            if cell.seed == 1 and not cell.variation:
                _refuse_missing_programs(cell)
        return sorted(cells, key=lambda cell: bool(cell.variation))

    @model_validator(mode="after")
    def _has_contestants(self) -> "Experiment":
        if not (self.schedulers or self.variants):
            raise ValueError("schedulers: name one, such as `eevdf`, or write [[variants]]")
        return self

    def _contestants(self, origins: Mapping[str, str]) -> list[Contestant]:
        """Return what is compared, the baseline first."""
        with _blaming(origins.get("schedulers")):
            found = [variant.of_scheduler(text) for text in self.schedulers]
        with _blaming(origins.get("variants")):
            found += [variant.of_variant(one) for one in self.variants]
        with _blaming(origins.get("variants" if self.variants else "schedulers")):
            once = identity.once("variant", [one.option[1] for one in found], found)
            _refuse_twins([one.name for one in found], [one.name for one in once])
            for contestant in found:
                contestant.scheduler.check_options()
        return found

    def _systems(self, contestants: list[Contestant], origins: Mapping[str, str]) -> list[Kernel]:
        """Return the run's kernels; if every variant has its own, that of the baseline stands for them."""
        own = [one.kernel for one in contestants if one.kernel]
        asked = [] if len(own) == len(contestants) else self.kernels
        with _blaming(origins.get("kernels")):
            found = [kernels.find(name) for name in asked]
            whole = identity.once("kernel", [*asked, *(kernel.option for kernel in own)], [*found, *own])
        return whole[: len({kernel.name for kernel in found}) or 1]

    def _refuse_unused(self, loads: list[workload.Workload]) -> None:
        for one in self.variants:
            for name in one.param:
                if not any(name in load.params for load in loads):
                    raise HeddleError(f"variant '{one.name}': param: {_no_parameter(name, loads)}")

    def _points(self) -> list[tuple[workload.Workload, dict[str, Value]]]:
        """Return each workload with each set of all its parameters, once."""
        asked = [point.name for point in self.workloads]
        loads = [workload.load(name).with_more(self.packages, self.files) for name in asked]
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
    path = tomlfile.find(name, paths.EXPERIMENTS, "experiment")
    found = tomlfile.load(path, Experiment)
    return found.model_copy(update={"files": [hostfiles.located(text, path.parent) for text in found.files]})


class Overrides(Model):
    """What the command line says over, or instead of, an experiment's file."""

    machines: list[str] = []
    kernels: list[str] = []
    schedulers: list[str] = []
    variants: list[str] = []
    workloads: list[str] = []
    params: dict[str, Value] = {}
    seeds: int | None = None
    trace: bool = False
    robust: bool = False
    packages: list[str] = []
    files: list[str] = []

    def origins(self, file: str) -> dict[str, str]:
        """Return where the names were written that an experiment's file gives and the command line does not replace.

        Args:
            file: name or path of the experiment.
        """
        path = tomlfile.find(file, paths.EXPERIMENTS, "experiment")
        sides = [*self.schedulers, *self.variants]
        own = {"machines": self.machines, "kernels": self.kernels, "schedulers": sides, "variants": sides}
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
            "schedulers": self.schedulers,
            "variants": [variant.parse(text) for text in self.variants],
            "workloads": [self._turn(point) for point in points],
            "seeds": base.seeds if self.seeds is None else self.seeds,
            "trace": self.trace or base.trace,
            "robust": self.robust or base.robust,
            "packages": [*base.packages, *self.packages],
            "files": [*base.files, *self.files],
        }
        if not (self.schedulers or self.variants):
            changes |= {"schedulers": base.schedulers, "variants": base.variants}
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
                raise HeddleError(f"--param {_no_parameter(name, loads)}")


def _no_parameter(name: str, loads: list[workload.Workload]) -> str:
    known = ", ".join(sorted({known for load in loads for known in load.params})) or "none"
    return f"{name}: no workload here has this parameter; known: {known}"


def _refuse_missing_programs(cell: Cell) -> None:
    load = cell.workload
    layers, files = load.userland(), load.host_files()
    for step in cell.job().steps:
        if not step.argv or step.argv[0] in load.programs or image.has_program(step.argv[0], layers):
            continue
        program = hostfiles.program(step.argv[0], files)
        what = f"workload '{load.name}': step '{step.name}'"
        if program is None:
            have = ", ".join((image.BASE, *load.layers, *load.packages))
            raise HeddleError(
                f"{what}: argv: no program '{step.argv[0]}' in the guest image ({have}); name its layer in `layers`, "
                "its Debian package in `packages`, or the program in `files`"
            )
        hostfiles.check_program(program, layers, what)


def _refuse_no_primary(load: workload.Workload, params: dict[str, Value]) -> None:
    """Refuse a point without a verdict before it is measured: which metric is primary may depend on parameters."""
    try:
        load.primary(params)
    except HeddleError as error:
        values = ", ".join(f"{name}={value}" for name, value in params.items())
        raise HeddleError(f"workload '{load.name}' with {values}: {error}") from error


def _refuse_twins(names: list[str], once: list[str]) -> None:
    """Refuse to compare something with itself under one name: of two names, it is a control."""
    if len(names) > len(once):
        twin = next(name for name in once if names.count(name) > 1)
        raise HeddleError(f"variant '{twin}' is named twice; give one of them another name, such as --variant other:")
