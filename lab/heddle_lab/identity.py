"""One name, one thing: what differs under one name is refused, never merged into one row."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from heddle_lab import hashing, resultfile
from heddle_lab.cell import OFFSET_STEP
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult


class Named(Protocol):
    """A machine, a kernel, a workload, a contestant: what tables know by its name alone."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def fingerprint(self) -> object:
        """Return all of it that can change a result, as plain data."""


NamedT = TypeVar("NamedT", bound=Named)

_MENDS = {
    "machine": "give one of the files another `name`",
    "kernel": "build one with another CONFIG_LOCALVERSION, so that their releases differ",
    "workload": "give one of the files another `name`",
    "variant": "give one of them another name: --variant NAME:... or --sched NAME=COMMAND",
}


def once(kind: str, asked: Sequence[str], found: Sequence[NamedT]) -> list[NamedT]:
    """Return each thing once, in the order in which they were asked for.

    Args:
        kind: `machine`, `kernel`, `workload` or `variant`.
        asked: what the user wrote, for errors: a name or a path.
        found: what each of these is.

    Raises:
        HeddleError: two different things have one name; names both and the mend.
    """
    first: dict[str, tuple[str, NamedT]] = {}
    for text, thing in zip(asked, found, strict=True):
        other, known = first.setdefault(thing.name, (text, thing))
        if known.fingerprint() != thing.fingerprint():
            raise HeddleError(
                f"two different {kind}s are called '{thing.name}': {other} and {text}; "
                f"{_MENDS[kind]}, or measure them in two runs"
            )
    return [thing for _, thing in first.values()]


def one_run(cells: list[CellResult], where: str) -> list[CellResult]:
    """Return the cells of one file, each once.

    Args:
        cells: as the file lists them.
        where: the file's name, for errors.

    Raises:
        HeddleError: one name stands for two things, or one cell has two results.
    """
    _refuse_two([(where, cell) for cell in cells], variants=True)
    known: dict[Hashable, CellResult] = {}
    for cell in cells:
        other = known.setdefault(_place(cell), cell)
        if other.provenance["cell"] != cell.provenance["cell"] or _numbers(other) != _numbers(cell):
            which = f"{cell.workload} {cell.machine} {cell.kernel} {cell.variant} seed {cell.seed}"
            raise HeddleError(f"{where}: two different results of one cell, {which}; keep one of them")
    return list(known.values())


def two_runs(before: list[CellResult], after: list[CellResult], names: tuple[str, str]) -> None:
    """Make sure that machines, kernels and workloads of one name are the same in two runs; variants may differ.

    Args:
        before: cells of the one.
        after: cells of the other.
        names: of the two runs, for errors.

    Raises:
        HeddleError: one name stands for two things; names it, the two and the mend.
    """
    _refuse_two([*((names[0], cell) for cell in before), *((names[1], cell) for cell in after)], variants=False)


def _refuse_two(cells: Iterable[tuple[str, CellResult]], *, variants: bool) -> None:
    first: dict[Hashable, tuple[str, str]] = {}
    for where, cell in cells:
        for kind, name, scope, content in _contents(cell):
            if kind == "variant" and not variants:
                continue
            digest = hashing.of_data(content)
            other, known = first.setdefault((kind, name, scope), (where, digest))
            if known != digest:
                sides = f"{other} (sha256 {known[:12]}) and {where} (sha256 {digest[:12]})"
                mend = "measure again with one, or give one of them another name"
                raise HeddleError(f"{kind} '{name}' stands for two different things: {sides}; {mend}")


def _contents(cell: CellResult) -> Iterator[tuple[str, str, Hashable, Any]]:
    """Yield what a cell's provenance says of each name: its kind, the name, where it is the same, its content."""
    inputs = cell.provenance["inputs"]
    yield "machine", cell.machine, cell.variation, inputs["machine"]
    yield "kernel", cell.provenance["kernel"], "", [inputs["kernel"], inputs.get("kernel_config")]
    yield "variant", cell.variant, "", [inputs["scheduler"], cell.provenance["variant"]]
    # A workload's steps are known as they were filled in, for one point and seed; those of a variant go before them.
    if "job" in inputs:
        own = {key: cell.provenance["variant"].get(key) for key in ("param", "env")}
        scope = (cell.machine, tuple(sorted(cell.params.items())), cell.seed, hashing.of_data(own))
        steps = inputs["job"]["steps"]
        names = [step["name"] for step in steps]
        first = names.index(OFFSET_STEP) if OFFSET_STEP in names else 0
        yield "workload", cell.workload, scope, steps[first:]
        yield "workload", cell.workload, "files", inputs.get("files")
    for metric, about in cell.provenance["metrics"].items():
        if "sha256" in about:
            yield "workload", cell.workload, f"metric {metric}", about["sha256"]


def _numbers(cell: CellResult) -> dict[str, int | float]:
    """Return the metrics that two runs of a cell have in common."""
    return {name: value for name, value in cell.metrics.items() if name != resultfile.WALL_METRIC}


def _place(cell: CellResult) -> Hashable:
    point = (cell.machine, cell.kernel, cell.workload, tuple(sorted(cell.params.items())))
    return (*point, cell.variant, cell.seed, cell.variation)
