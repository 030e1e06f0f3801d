"""`heddle run`: measure an experiment and compare its schedulers and variants."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from heddle_lab import (
    backends,
    comparison,
    detect,
    experiment,
    files,
    paths,
    resultfile,
    sequential,
    timelines,
    tracing,
    variant,
    workload,
)
from heddle_lab.backends.clock import Clock
from heddle_lab.backends.host import Host
from heddle_lab.cell import Cell
from heddle_lab.cli import folders, options, outcomes
from heddle_lab.experiment import Experiment, Overrides
from heddle_lab.progress import Reporter
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.runner import Outcome
from heddle_lab.store import Store


@click.command()
@click.argument("file", metavar="[EXPERIMENT]", required=False)
@click.option("--sched", "schedulers", multiple=True, metavar="NAME[=COMMAND]", help="The first is the baseline.")
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME:KEY=VALUE,...",
    help=f"What else is compared, after the schedulers; keys: {', '.join(variant.KEYS)}.",
)
@click.option("--machine", "machines", multiple=True, metavar="M")
@click.option(
    "--kernel",
    "kernel_names",
    multiple=True,
    metavar="K",
    help="Such as 7.3, a path to a bzImage, or a built kernel tree.",
)
@click.option("--workload", "workloads", multiple=True, metavar="W")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A workload's parameter.")
@click.option("--file", "host_files", multiple=True, metavar="HOST[:GUEST]", help=options.FILE_HELP)
@click.option("--package", "packages", multiple=True, metavar="P", help="A Debian package for the guest.")
@click.option("--seeds", type=click.IntRange(1, 1000), metavar="N", help="Paired seeds 1..N; the most with --detect.")
@click.option(
    "--detect",
    type=options.Percent(),
    metavar="X%",
    help=f"Add seeds until each point is decided or would show X %; --seeds N at the most, default {detect.MOST}.",
)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Guests at a time; default: one per core.")
@click.option("--dask", "dask_address", metavar="ADDR", help="A Dask scheduler, such as tcp://host:8786.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Default: out/EXPERIMENT.")
@click.option("--trace", is_flag=True, help="Measure waits, waste and lag from tracepoints, in a second boot per cell.")
@click.option("--robust", is_flag=True, help="Vary the model; a sign that does not survive is unknown.")
@click.option("--fresh", is_flag=True, help="Measure again what was measured before, and insist on the same result.")
@click.option(
    "--backend",
    "backend_name",
    type=click.Choice(backends.NAMES),
    default=backends.NAMES[0],
    show_default=True,
    help="What runs the cells: guests in virtual time, this machine in wall time, or guests under KVM.",
)
@click.option("--cold", is_flag=True, help="Boot each guest, without snapshots: slower, and the same to the last bit.")
def run(
    file: str | None,
    schedulers: tuple[str, ...],
    variants: tuple[str, ...],
    machines: tuple[str, ...],
    kernel_names: tuple[str, ...],
    workloads: tuple[str, ...],
    params: tuple[str, ...],
    host_files: tuple[str, ...],
    packages: tuple[str, ...],
    seeds: int | None,
    trace: bool,
    robust: bool,
    out: Path | None,
    backend_name: str,
    **how: Any,
) -> int:
    """Measure an experiment (a name, a .toml file, or --workload alone) and compare its schedulers and variants.

    A variant is whatever differs: scheduler, kernel, command line, sysctls, features of the kernel's scheduler,
    parameters, environment. The first one is the baseline. `--sched S` is a variant that differs by the scheduler
    alone, and `--variant NAME` without keys is the kernel's own scheduler as it is.
    """
    overrides = Overrides(
        machines=list(machines),
        kernels=list(kernel_names),
        schedulers=list(schedulers),
        variants=list(variants),
        workloads=list(workloads),
        params=dict(workload.parse_param(text) for text in params),
        seeds=seeds or (detect.MOST if how["detect"] else None),
        trace=trace,
        robust=robust,
        files=list(host_files),
        packages=list(packages),
    )
    wanted = overrides.apply(experiment.load(file) if file else None)
    folder = out or Path("out") / wanted.name
    backend = _backend(backend_name, overrides, folder)
    cells = backend.cells(wanted, overrides.origins(file) if file else experiment.NOWHERE)
    files.make_folder(folder)  # before hours of measurement
    cells, outcome, looks = _measure(wanted, cells, backend, how)
    return _conclude(wanted, cells, outcome, folder, looks)


def _backend(name: str, overrides: Overrides, folder: Path) -> backends.Backend:
    """Return what runs the cells.

    Raises:
        HeddleError: it does not work here, or not with these options.
    """
    match name:
        case "kvm":
            raise backends.kvm()
        case "host":
            return Host(folder, overrides.machines, overrides.kernels)
        case _:
            return Clock()


def _measure(
    wanted: Experiment, cells: list[Cell], backend: backends.Backend, how: Mapping[str, Any]
) -> tuple[list[Cell], Outcome, list[int]]:
    """Measure cells.

    Returns:
        Those that were worth it, what came of them, and after how many pairs `--detect` looked.
    """

    def measure(batch: list[Cell]) -> Outcome:
        boots = [boot for cell in batch for boot in ((cell, cell.twin()) if wanted.trace else (cell,))]
        with Reporter(len(boots)) as reporter:
            return backend.run(boots, how, reporter)

    if not how["detect"]:
        return cells, measure(cells), []
    search = detect.Search(effect=how["detect"], looks=sequential.looks(wanted.seeds))
    worth, outcome = detect.run(
        cells, search, measure, lambda some, found: outcomes.metrics(some, found.results, wanted.trace)[0]
    )
    return worth, outcome, search.looks


def _conclude(wanted: Experiment, cells: list[Cell], outcome: Outcome, folder: Path, looks: list[int]) -> int:
    """Write and print what was measured, then say what was not; return the exit status."""
    found = outcome.results
    measured, failures = outcomes.metrics(cells, found, wanted.trace)
    if measured:
        about = _write(folder, wanted, cells, found, measured, looks)
        folders.publish(folder, measured, about)
    failures = [*outcome.failures, *failures]
    for line in outcomes.failure_lines(failures):
        click.echo(f"heddle: {line}", err=True)
    if outcome.interrupted:
        click.echo(
            f"heddle: interrupted; {len(measured)} of {len(cells)} cells are kept, run again to go on",
            err=True,
        )
        return 130
    return 1 if failures else 0


def _write(
    folder: Path,
    wanted: Experiment,
    cells: list[Cell],
    found: dict[str, Results],
    measured: list[CellResult],
    looks: list[int],
) -> resultfile.About:
    """Write what was measured, what is said of it, and the timelines that tell most; return what is said."""
    resultfile.write(folder, measured)
    before = resultfile.about(folder)
    about = resultfile.About(
        title=f"{wanted.name}: {wanted.summary}",
        command=f"bin/heddle {shlex.join(sys.argv[1:])}",
        looks=looks,
        pages=before.pages,
        topologies={cell.machine.name: tracing.topology(found[cell.key()]) for cell in cells if cell.key() in found},
        timelines={
            timelines.write(folder, cell, Store(paths.cells())): timelines.label(cell, measured)
            for cell in timelines.telling(comparison.variants(measured, looks), measured)
        },
    )
    resultfile.write_about(folder, about)
    timelines.drop(folder, before.timelines.keys() - about.timelines.keys())
    return about
