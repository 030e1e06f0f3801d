"""The command `heddle`."""

import io
import json
import math
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heddle_lab import (
    agreement,
    backends,
    bisection,
    compare,
    comparison,
    contrasts,
    criterion,
    detect,
    differences,
    doctor,
    experiment,
    fidelity,
    files,
    hostfiles,
    html,
    identity,
    image,
    invariance,
    kernels,
    machine,
    manual,
    markdown,
    pages,
    paths,
    profile,
    recording,
    rehearsal,
    resultfile,
    scheduler,
    selection,
    sequential,
    stats,
    table,
    timelines,
    tomlfile,
    tracefile,
    tracing,
    transfers,
    units,
    validation,
    variant,
    vm,
    workload,
)
from heddle_lab.backends.clock import Clock
from heddle_lab.backends.host import Host
from heddle_lab.cell import Cell
from heddle_lab.criterion import Criterion
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment, Overrides
from heddle_lab.hardware import calibrated, calibration, machinefile
from heddle_lab.job import Job
from heddle_lab.measures import drawing, perfetto
from heddle_lab.progress import Reporter
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from heddle_lab.runner import Failure, Outcome, Runner
from heddle_lab.selection import Selection
from heddle_lab.store import Store


def main() -> None:
    """Run the command line; a fault is one line on stderr and exit status 1 (`compare`, `verdict` have their own)."""
    named = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    fault = {compare_runs.name: compare.NO_VERDICT, verdict.name: criterion.ABORT}.get(named, 1)
    try:
        _run(fault)
    except Exception:
        if fault == 1:
            raise
        # Python's own status is that of a loss, and of a bad commit.
        traceback.print_exc()
        sys.exit(fault)


def _run(fault: int) -> None:
    """Run the command line.

    Args:
        fault: exit status of an error that no caller expected, such as a full disk.
    """
    try:
        status = cli.main(prog_name="heddle", standalone_mode=False)
    except click.Abort:
        _die("interrupted", 130)
    except click.ClickException as error:
        usage = {compare_runs: compare.USAGE, verdict: criterion.ABORT}
        command = error.ctx.command if isinstance(error, click.UsageError) and error.ctx else None
        _die(error.format_message(), usage.get(command, 1) if isinstance(command, click.Command) else 1)
    except HeddleError as error:
        if "--debug" in sys.argv:
            raise
        _die(str(error), error.status)
    except OSError as error:
        # What no caller expected to fail: a full or unreadable disk, a reader that left.
        if "--debug" in sys.argv:
            raise
        _die(": ".join(filter(None, [error.filename, error.strerror or str(error)])), fault)
    sys.exit(status if isinstance(status, int) else 0)


def _die(message: str, status: int = 1) -> None:
    click.echo(f"heddle: {message}", err=True)
    sys.exit(status)


class _Milliseconds(click.FloatRange):
    """A time that is a number of nanoseconds: `nan`, which lies in every range, and `inf` are none."""

    name = "number of milliseconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number * 1e6):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


class _Percent(click.ParamType[float]):
    """A part of something, written as `2%` or `2`; a fraction in the program."""

    name = "percentage"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = value if isinstance(value, float) else float(str(value).removesuffix("%")) / 100
        except ValueError:
            number = math.nan
        if not 0 < number < 1:
            self.fail(f"{value!r} is no percentage above 0 and below 100; write it such as 2%.", param, ctx)
        return number


_FILE_HELP = f"A file or folder of this host for the guest, as GUEST; default: {hostfiles.PROGRAMS}/NAME."


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Compare CPU schedulers: real kernels, modelled machines, virtual time."""


@cli.command()
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
@click.option("--file", "host_files", multiple=True, metavar="HOST[:GUEST]", help=_FILE_HELP)
@click.option("--package", "packages", multiple=True, metavar="P", help="A Debian package for the guest.")
@click.option("--seeds", type=click.IntRange(1, 1000), metavar="N", help="Paired seeds 1..N; the most with --detect.")
@click.option(
    "--detect",
    type=_Percent(),
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

    def measure(batch: list[Cell]) -> Outcome:
        boots = [boot for cell in batch for boot in ((cell, cell.twin()) if wanted.trace else (cell,))]
        with Reporter(len(boots)) as reporter:
            return backend.run(boots, how, reporter)

    looks: list[int] = []
    if how["detect"]:
        search = detect.Search(effect=how["detect"], looks=sequential.looks(wanted.seeds))
        looks = search.looks
        cells, outcome = detect.run(
            cells, search, measure, lambda some, found: _measured(some, found.results, wanted.trace)[0]
        )
    else:
        outcome = measure(cells)
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


def _conclude(wanted: Experiment, cells: list[Cell], outcome: Outcome, folder: Path, looks: list[int]) -> int:
    """Write and print what was measured, then say what was not; return the exit status."""
    found = outcome.results
    measured, failures = _measured(cells, found, wanted.trace)
    if measured:
        command = f"bin/heddle {shlex.join(sys.argv[1:])}"
        resultfile.write(folder, measured)
        before = resultfile.about(folder)
        about = resultfile.About(
            title=f"{wanted.name}: {wanted.summary}",
            command=command,
            looks=looks,
            pages=before.pages,
            topologies={
                cell.machine.name: tracing.topology(found[cell.key()]) for cell in cells if cell.key() in found
            },
            timelines={
                timelines.write(folder, cell, Store(paths.cells())): timelines.label(cell, measured)
                for cell in timelines.telling(comparison.variants(measured, looks), measured)
            },
        )
        resultfile.write_about(folder, about)
        timelines.drop(folder, before.timelines.keys() - about.timelines.keys())
        _publish(folder, measured, about)
    failures = [*outcome.failures, *failures]
    for line in _failure_lines(failures):
        click.echo(f"heddle: {line}", err=True)
    if outcome.interrupted:
        click.echo(
            f"heddle: interrupted; {len(measured)} of {len(cells)} cells are kept, run again to go on",
            err=True,
        )
        return 130
    return 1 if failures else 0


def _measured(cells: list[Cell], found: dict[str, Results], traced: bool) -> tuple[list[CellResult], list[Failure]]:
    """Turn what guests reported into metrics; a cell whose output lacks one is a failure like any other."""
    measured, failures = [], []
    for cell in cells:
        if results := found.get(cell.key()):
            twin = found.get(cell.twin().key()) if traced else None
            try:
                measured.append(resultfile.from_cell(cell, results, twin))
            except HeddleError as error:
                failures.append(Failure(cell=cell.label, error=str(error)))
    return measured, failures


def _failure_lines(failures: list[Failure]) -> list[str]:
    """Return one line for each distinct error, with the first cell that met it."""
    cells: dict[str, list[str]] = {}
    for failure in failures:
        cells.setdefault(failure.error, []).append(failure.cell)
    more = {error: units.counted(len(met) - 1, "more cell") for error, met in cells.items()}
    return [f"{met[0]}{f' (and {more[error]})' if len(met) > 1 else ''}: {error}" for error, met in cells.items()]


def _publish(folder: Path, cells: list[CellResult], about: resultfile.About) -> None:
    """Print the table and write the page."""
    rows = comparison.variants(cells, about.looks)
    console = _console()
    if rows:
        table.show(rows, cells, console, about.looks)
    else:
        table.show_single(cells, console)
    page = folder / html.NAME
    files.write_text(page, html.render(about, cells, rows, html.pictures(folder, about, cells)))
    files.write_text(folder / markdown.NAME, markdown.render(rows, about))
    click.echo(f"{folder / resultfile.NAME}\n{page}")


def _gone(instead: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """Return what refuses a removed option and names what to use instead."""

    def refuse(_: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise HeddleError(f"{option.opts[0]} was removed: use {instead}")

    return refuse


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--into",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PAGE.md",
    help="Also put the table into a page, between its lines <!-- DIR:begin --> and <!-- DIR:end -->.",
)
@click.option("--means", is_flag=True, help="Into the page: a line for each variant, not the table.")
@click.option(
    "--baseline",
    metavar="NAME",
    help="Compare with this variant: print, and put between <!-- DIR of NAME:begin --> and its end, but leave DIR.",
)
@click.option("--level-with", hidden=True, callback=_gone("--means --baseline NAME, which counts the words"))
def report(folder: Path, into: Path | None, means: bool, baseline: str | None, **_: object) -> None:
    """Print the table of DIR/results.json again and write DIR/report.html and DIR/table.md anew."""
    cells, about = _cells(folder), resultfile.about(folder)
    name = folder.resolve().name
    if baseline:
        cells, name = comparison.against(cells, baseline), f"{name} of {baseline}"
        table.show(comparison.variants(cells, about.looks), cells, _console(), about.looks)
    elif into:
        about = _linked(folder, about, into)
    if into:
        where = os.path.relpath(folder, into.parent)
        if means:
            text = markdown.summary(cells, about, where)
        else:
            published = None if folder.resolve().is_relative_to(paths.OUT) else where
            text = markdown.render(comparison.variants(cells, about.looks), about, published)
            if published is None:
                text = f"{pages.mark(pages.of_cells(cells))}\n{text}"
        markdown.insert(into, name, text)
    if not baseline:
        _publish(folder, cells, about)


def _linked(folder: Path, about: resultfile.About, page: Path) -> resultfile.About:
    """Return what is said of a run, with a page that shows its table, and write it."""
    shown = os.path.relpath(page, folder)
    linked = about.model_copy(update={"pages": sorted({*about.pages, shown})})
    if linked != about:
        resultfile.write_about(folder, linked)
    return linked


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--sched", "--variant", "name", required=True, metavar="NAME", help="A scheduler or another variant.")
@click.option("--workload", "load", required=True, metavar="W")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Tells the cell from others.")
@click.option("--machine", "machine_name", metavar="M")
@click.option("--kernel", "kernel_name", metavar="K")
@click.option("--seed", default=1, show_default=True, metavar="N")
@click.option(
    "--from-ms",
    type=_Milliseconds(min=0),
    metavar="MS",
    help="Begin of the picture in the step; default: its middle.",
)
@click.option(
    "--for-ms", type=_Milliseconds(min=1e-6), default=timelines.SPAN_NS / 1e6, show_default=True, metavar="MS"
)
def timeline(
    folder: Path,
    name: str,
    load: str,
    params: tuple[str, ...],
    machine_name: str | None,
    kernel_name: str | None,
    seed: int,
    from_ms: float | None,
    for_ms: float,
) -> None:
    """Draw a traced cell of DIR: a picture for its page, and a file for ui.perfetto.dev."""
    wanted = {"variant": name, "workload": load, "seed": seed, "machine": machine_name, "kernel": kernel_name}
    cells = _cells(folder)
    cell = resultfile.find(cells, wanted, dict(workload.parse_param(text) for text in params))
    start = None if from_ms is None else round(from_ms * 1e6)
    drawn = timelines.write(folder, cell, Store(paths.cells()), start, round(for_ms * 1e6))
    about = resultfile.about(folder)
    about = about.model_copy(update={"timelines": about.timelines | {drawn: timelines.label(cell, cells)}})
    resultfile.write_about(folder, about)
    files.write_text(
        folder / html.NAME,
        html.render(about, cells, comparison.variants(cells, about.looks), html.pictures(folder, about, cells)),
    )
    base = folder / timelines.FOLDER / drawn
    click.echo(f"{base}{drawing.SUFFIX}\n{base}{perfetto.SUFFIX}\n{folder / html.NAME}")


@cli.command(name="profile")
@click.option("--workload", "load", required=True, metavar="W")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A workload's parameter.")
@click.option("--sched", "schedulers", multiple=True, metavar="NAME[=COMMAND]", help="Default: eevdf and scx_heddle.")
@click.option("--machine", "machine_name", default=experiment.DEFAULT_MACHINE, show_default=True, metavar="M")
@click.option("--kernel", "kernel_name", default=experiment.DEFAULT_KERNEL, show_default=True, metavar="K")
@click.option("--most", type=click.IntRange(1), default=40, show_default=True, metavar="N", help="How many.")
@click.option("--lines", is_flag=True, help="List the cache lines that move between CPUs, instead of functions.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PAGE.md",
    help="Also put it into a page, between its lines <!-- profile of W:begin --> and <!-- profile of W:end -->, or "
    "`lines of W`.",
)
def show_profile(
    load: str,
    params: tuple[str, ...],
    schedulers: tuple[str, ...],
    machine_name: str,
    kernel_name: str,
    most: int,
    lines: bool,
    into: Path | None,
) -> None:
    """Count the instructions of each function of kernel and BPF programs, per context switch: exact counts.

    With two schedulers the functions come first in which they differ most. With --lines: which cache lines of the
    kernel and of BPF programs move between CPUs, the most expensive first; how many CPUs read and write them, how
    often they move, and for how many nanoseconds CPUs wait for them, per context switch.
    """
    wanted = Overrides(
        machines=[machine_name],
        kernels=[kernel_name],
        schedulers=list(schedulers),
        workloads=[load],
        params=dict(workload.parse_param(text) for text in params),
        seeds=1,
    ).apply(None)
    cells = wanted.cells(experiment.NOWHERE)
    about = f"{machine_name}, Linux {kernel_name}, {cells[0].point}, seed 1"
    tables = _line_tables(cells, most, about) if lines else _function_table(cells, most, about)
    page = [f"`bin/heddle {shlex.join(sys.argv[1:])}`\n"]
    for caption, headings, rows in tables:
        click.echo(caption)
        _listing(tuple(headings), [tuple(row) for row in rows])
        page.append(f"{caption}:\n\n{markdown.grid(headings, rows, texts=2 if lines else 1)}")
    if into:
        markdown.insert(into, f"{'lines' if lines else 'profile'} of {load}", "\n".join(page))


_Captioned = tuple[str, list[str], list[list[str]]]
"""what a table shows, its headings, its lines"""


def _function_table(cells: list[Cell], most: int, about: str) -> list[_Captioned]:
    profiles = [profile.measure(cell) for cell in cells]
    return [(f"{about}: instructions per context switch", *profile.table(profiles, most))]


def _line_tables(cells: list[Cell], most: int, about: str) -> list[_Captioned]:
    what = "cache lines that move, per context switch"
    measured = [transfers.measure(cell) for cell in cells]
    return [(f"{about}, {one.contestant}: {what}", *transfers.table(one, most)) for one in measured]


_STRETCHES = ", ".join(f"{one:g}" for one in rehearsal.STRETCHES)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="TRACE")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="W.toml", help="Default: TRACE.toml.")
@click.option("--source", default="", metavar="TEXT", help="Which machine, which load: goes into the file.")
@click.option("--only", multiple=True, metavar="TASK", help="A name (* is any text), a pid, or a cgroup's path.")
@click.option("--exclude", multiple=True, metavar="TASK", help="Likewise; excluded tasks do not run in the replay.")
@click.option(
    "--cgroups", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=f"Output of `{selection.HOW}`."
)
@click.option("--from-ms", type=_Milliseconds(min=0), default=0.0, metavar="MS", help="Begin of the part that is kept.")
@click.option("--for-ms", type=_Milliseconds(min=1), metavar="MS", help="Its length; default: to the trace's end.")
@click.option(
    "--stretch",
    type=click.FloatRange(0.1, 100),
    metavar="X",
    help=f"Play it so many times slower; default: {_STRETCHES}.",
)
@click.option("--check", "machine_name", metavar="M", help="Compare on this machine; default: one of as many CPUs.")
@click.option("--no-check", is_flag=True, help="Compare nothing: verdicts on the load are unknown.")
@click.option("--kernel", "kernel_name", default=experiment.DEFAULT_KERNEL, show_default=True, metavar="K")
def record(
    file: Path, out: Path | None, source: str, machine_name: str | None, no_check: bool, kernel_name: str, **part: Any
) -> int:
    """Turn a trace of a real machine into a workload, and compare its replay with the trace.

    TRACE is perf.data of `perf sched record`, trace.dat of `trace-cmd record -e sched`, a trace of Perfetto with sched
    events, or the text of `perf script`, `trace-cmd report` or tracefs's `trace`.

    Exit status 1: the replay does not match, and the file says so: verdicts on the load are unknown.
    """
    target = out or file.with_suffix(".toml")
    if not target.parent.is_dir():
        raise HeddleError(f"cannot write {target}: no folder {target.parent}; make it, or name another file by --out")
    cgroups = selection.cgroups(part["cgroups"]) if part["cgroups"] else {}
    wanted = Selection(part["only"], part["exclude"], cgroups)
    span = recording.Span(round(part["from_ms"] * 1e6), part["for_ms"] and round(part["for_ms"] * 1e6))
    recorded = recording.of_trace(tracefile.read(file), str(file), wanted, span)
    if recorded.unread:
        lines = units.counted(recorded.unread, "line")
        what = f"{lines} not understood, first: {recorded.first_unread.strip()!r}"
        click.echo(f"heddle: {file}: {what}", err=True)
    name = re.sub("[^a-z0-9]+", "-", target.stem.lower()).strip("-") or "recorded"

    def write(stretch: float) -> Path:
        files.write_text(target, recording.workload(recorded, name, source or f"recorded: {file.name}", stretch))
        return target

    stretches = (part["stretch"],) if part["stretch"] else rehearsal.STRETCHES
    write(stretches[0])
    _listing(recording.HEADINGS, [group.row() for group in recorded.groups])
    click.echo(f"Left out: {units.part(recorded.left_out)} of the CPU time: kernel threads, and what was not selected.")
    click.echo(target)
    if no_check:
        return 0
    box = machine.load(machine_name) if machine_name else rehearsal.box_of(recorded.cpus)
    found = rehearsal.best(recorded, write, box, kernels.find(kernel_name), stretches)
    _listing(("what", "trace", "replay", "apart", "at most"), [one.row() for one in found.compared])
    faults = found.mismatch(found.workload)
    if faults:
        why = fidelity.other_size(recorded, box.cpus, box.name)
        message = f"{fidelity.WORD} its trace: {faults}{why}; the file says so, and verdicts on it are unknown"
        click.echo(f"heddle: {target}: {message}", err=True)
    return 1 if faults else 0


@cli.command()
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Guests at a time; default: one per core.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="PAGE.md", default=validation.PAGE)
def validate(jobs: int | None, out: Path) -> int:
    """Measure what the laboratory claims about itself and write the page; exit status 1 if a check disagrees."""
    files.make_folder(out.parent)
    checks = validation.load()
    planned = validation.cells(checks)
    varied = checks.variations
    boots = [cell for seeds in planned.values() for sides in seeds for cell in sides]
    boots += [cell for *_, twins in varied for one in twins for cell in (one.cell, one.varied)]
    with Reporter(len(boots)) as reporter:
        outcome = Runner(Store(paths.cells()), jobs=jobs, report=reporter.show).run(boots)
    if outcome.interrupted:
        raise click.Abort
    findings = validation.judge(checks, planned, outcome)
    found = [(name, invariance.compare(twins, kind, outcome.results)) for name, kind, twins in varied]
    files.write_text(out, validation.page(findings, found))
    rows = [(one.check.kind, one.check.name, one.word.value.strip("*"), one.remark) for one in findings]
    _listing(("kind", "check", "verdict", "why not"), rows)
    click.echo(out)
    return 1 if any(one.word is validation.Word.DISAGREE for one in findings) else 0


@cli.command(name="fidelity")
@click.option(
    "--machine",
    "machine_file",
    metavar="FILE.toml",
    help="This machine's file; default: measured as by `heddle calibrate`, once per DIR.",
)
@click.option("--repetitions", type=click.IntRange(2), metavar="N", help="Of each side on this machine.")
@click.option("--pairs", type=click.IntRange(2), metavar="N", help="Seeds of each side on the clock.")
@click.option(
    "--contrasts",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=contrasts.FILE,
    metavar="F.toml",
    help="Default: lab/fidelity.toml.",
)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Guests at a time; default: one per core.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/fidelity"),
    show_default=True,
    metavar="DIR",
)
@click.option(
    "--from",
    "measured",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="RUN.json",
    help=f"What an earlier run measured, its {contrasts.NAME}: measure nothing.",
)
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), metavar="PAGE.md", help="Also write the page.")
def compare_with_host(
    file: Path, measured: Path | None, out: Path, page: Path | None, machine_file: str | None, **how: Any
) -> int:
    """Run programs in two ways each, on this machine and on the clock's model of it, and compare the effects.

    The machine should do nothing else meanwhile. A run into the same folder goes on where it stopped. Exit status 1:
    the signs or the slope disagree, a miss is not explained, or something was not measured.
    """
    wanted = contrasts.load(file)
    asked = {key: how[key] for key in ("repetitions", "pairs") if how[key]}
    wanted = wanted.model_copy(update=asked)
    failed = False
    if measured:
        found = contrasts.read(measured)
    else:
        found, failed = _contrasted(wanted, out, machine_file, how["jobs"])
    agreed = agreement.judge(wanted, found)
    _listing(agreement.HEADINGS, [tuple(cell.replace("*", "") for cell in row) for row in agreed.rows()])
    click.echo(f"{agreed.summary()}.")
    for line in agreed.faults():
        click.echo(f"heddle: {line}", err=True)
    if page:
        files.write_text(page, agreement.page(agreed, found))
        click.echo(page)
    return 1 if failed or agreed.faults() else 0


def _contrasted(
    wanted: contrasts.Contrasts, out: Path, machine_file: str | None, jobs: int | None
) -> tuple[contrasts.Run, bool]:
    """Measure contrasts on this machine, then on the clock; tell whether a cell failed."""
    files.make_folder(out)
    box_file = machine_file or str(contrasts.this_machine(out))
    box = machine.load(box_file)
    here = Host(out, [box_file], [])
    planned = (
        contrasts.moved(contrasts.cells(wanted, box, "host"), here.here),
        contrasts.cells(wanted, box, "clock"),
    )
    outcomes = []
    by: tuple[backends.Backend, backends.Backend] = (here, Clock())
    for backend, plan, at_a_time in zip(by, planned, (None, jobs), strict=True):
        cells = contrasts.in_order(plan)
        how = {"jobs": at_a_time, "dask_address": None, "fresh": False, "cold": False}
        with Reporter(len(cells)) as reporter:
            outcomes.append(backend.run(cells, how, reporter))
        for line in _failure_lines(outcomes[-1].failures):
            click.echo(f"heddle: {line}", err=True)
        if outcomes[-1].interrupted:
            raise click.Abort
    found = contrasts.run_of(box_file, planned, (outcomes[0].results, outcomes[1].results))
    click.echo(contrasts.write(out, found))
    return found, any(outcome.failures for outcome in outcomes)


@cli.command(name="compare")
@click.argument("before", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("after", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--smallest",
    type=_Percent(),
    default=stats.SMALLEST_EFFECT,
    metavar="X%",
    help=f"The smallest loss that matters; default: {stats.SMALLEST_EFFECT:.0%}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.xml",
    help="Also write JUnit's XML: a test for each primary metric.",
)
def compare_runs(before: Path, after: Path, smallest: float, as_json: bool, junit: Path | None) -> int:
    """Compare two runs over whatever differs between them: did the second lose?

    Exit status 0: no loss. 1: a primary metric is worse somewhere, or cells are missing. 2: no verdict, for want of
    seeds or because of an error. 3: wrong usage.
    """
    try:
        runs = _cells(before), _cells(after)
        identity.two_runs(*runs, (str(before), str(after)))
        rows = compare.rows(*runs, smallest)
        missing = compare.missing(*runs)
        differs = differences.lines(pair for paired in comparison.partners(*runs) for pair in paired)
        if junit:
            files.write_text(junit, compare.junit(rows, missing))
    except HeddleError as error:
        raise HeddleError(str(error), compare.NO_VERDICT) from error
    if as_json:
        click.echo(json.dumps(compare.document(rows, missing, differs), indent=1, ensure_ascii=False))
    else:
        table.show(rows, [*runs[0], *runs[1]], _console())
        for line in differs:
            click.echo(f"differs: {line}")
        click.echo(compare.summary(rows))
    for line in filter(None, (missing, compare.remedy(rows))):
        click.echo(f"heddle: {line}", err=True)
    return compare.status(rows, missing)


def _criterion(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that say what makes a kernel bad."""
    options = [
        click.option("--workload", "load", required=True, metavar="W"),
        click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A workload's parameter."),
        click.option("--metric", metavar="NAME", help="Default: the workload's primary."),
        click.option("--machine", "machine_name", default=experiment.DEFAULT_MACHINE, show_default=True, metavar="M"),
        click.option("--sched", default=scheduler.EEVDF, show_default=True, metavar="COMMAND", help="On both kernels."),
        click.option(
            "--smallest",
            type=_Percent(),
            default=stats.SMALLEST_EFFECT,
            metavar="X%",
            help=f"The smallest loss that makes a kernel bad; default: {stats.SMALLEST_EFFECT:.0%}.",
        ),
        click.option(
            "--seeds",
            type=click.IntRange(stats.FEWEST, 1000),
            default=criterion.SEEDS,
            show_default=True,
            metavar="N",
            help="Pairs at most; they are added until they tell.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _wanted(load: str, params: tuple[str, ...], machine_name: str, **how: Any) -> Criterion:
    """Return what the options of `_criterion` say."""
    values = dict(workload.parse_param(text) for text in params)
    return Criterion(workload=load, params=values, machine=machine_name, **how)


@cli.command()
@click.argument("tree", type=click.Path(path_type=Path), metavar="TREE")
@click.option("--against", required=True, metavar="K", help="The good kernel, as `run --kernel` takes it.")
@click.option("--build", metavar="COMMAND", help="Build TREE first, with its commit at the end of its release.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Guests at a time; default: one per core.")
@_criterion
def verdict(tree: Path, against: str, build: str | None, jobs: int | None, **how: Any) -> int:
    """Say whether the kernel of TREE is worse than another: a criterion for `git bisect run`.

    Exit status 0: good, no loss of X % or more. 1: bad, worse. 125: it cannot be built or measured, or the pairs do
    not tell. 128: the question is wrong, which ends the bisection.
    """
    try:
        wanted = _wanted(**how)
        if build and (failure := bisection.Tree(tree).build(build)):
            click.echo(f"heddle: {failure}", err=True)
            return criterion.SKIP
        cells = wanted.cells(against, str(tree.resolve()))
        boots = {"jobs": jobs, "dask_address": None, "fresh": False, "cold": False}

        def measure(batch: list[Cell]) -> Outcome:
            with Reporter(len(batch)) as reporter:
                return Clock().run(batch, boots, reporter)

        status, line = wanted.judge(cells, measure, lambda some, found: _measured(some, found.results, traced=False)[0])
    except HeddleError as error:
        raise HeddleError(str(error), criterion.ABORT) from error
    click.echo(line)
    return status


@cli.command(name="bisect")
@click.argument("tree", type=click.Path(path_type=Path), metavar="TREE")
@click.option("--good", required=True, metavar="COMMIT", help="All others are compared with it.")
@click.option("--bad", required=True, metavar="COMMIT", help="A later one, which must be worse.")
@click.option("--build", default=bisection.BUILD, show_default=True, metavar="COMMAND", help="Of a shell, in TREE.")
@_criterion
def find_commit(tree: Path, good: str, bad: str, build: str, **how: Any) -> int:
    """Find the commit of a kernel's git TREE that made it worse, by `git bisect run`.

    TREE has its configuration in .config. Afterwards it is at the commit where it was. Exit status 0: found. 2: only
    commits are left that cannot be built or told.
    """
    found = bisection.Tree(tree)
    first = bisection.run(found, good, bad, build, _wanted(**how))
    if first is None:
        click.echo("heddle: the commits above cannot be told apart; more --seeds may tell", err=True)
        return 2
    click.echo(f"\nfirst bad commit: {found.describe(first)}")
    return 0


def _cells(folder: Path) -> list[CellResult]:
    """Read a folder's cells; one name is one thing in them."""
    return identity.one_run(resultfile.read(folder), str(folder))


def _listing(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    listing = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        listing.add_row(*map(escape, row))
    _console().print(listing)


@cli.command()
def machines() -> None:
    """List the machines."""
    boxes = [machine.load(name) for name in tomlfile.names(paths.MACHINES)]
    boxes.sort(key=lambda box: (box.cpus, box.name))
    _listing(
        ("machine", "CPUs", "LLCs", "threads", "what it is"),
        [(m.name, str(m.cpus), str(m.topology.llcs), str(m.topology.threads), m.summary) for m in boxes],
    )


@cli.command(name="machine")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    default=Path("/"),
    metavar="SOURCE",
    help="An XML file of lstopo, a copy of /sys, or a tar archive of one, as hwloc-gather-topology writes it; "
    "default: this machine.",
)
@click.option(
    "--scale", type=click.IntRange(1, machine.MOST_CPUS), metavar="N", help="Shrink it to N CPUs at the most."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.toml", help="Default: print it.")
def write_machine(source: Path, scale: int | None, out: Path | None) -> None:
    """Write a machine file for a real machine.

    Each value says where it comes from: it was read, or it is assumed to be as on the likest shipped machine. What
    the file cannot express is approximated, and its first lines say so; `heddle calibrate` measures the costs.
    """
    seen = machinefile.read(source)
    text, remarks = machinefile.write(seen, machinefile.name_of(out.stem) if out else None, scale)
    for remark in remarks:
        click.echo(f"heddle: {remark}", err=True)
    if out is None:
        click.echo(text, nl=False)
    else:
        files.write_text(out, text)
        click.echo(out)


@cli.command()
@click.option(
    "--export",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the measuring program to DIR, to be run on another machine.",
)
@click.option(
    "--from",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUTPUT.json",
    help="What the program printed there; default: measure this machine.",
)
@click.option(
    "--machine",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.toml",
    help="The measured machine's file; default: this machine's, as `heddle machine` writes it.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.toml", help="Default: FILE.toml.")
def calibrate(export: Path | None, output: Path | None, file: Path | None, out: Path | None) -> None:
    """Measure what a machine's hardware and kernel take, and write it into its machine file.

    Cache lines between CPUs, locked instructions, system calls, page faults, switches, interrupts, and the exit of idle
    states. Some of these cannot be measured alone: guests run the same program, and the costs are those with which it
    gives the same there.
    """
    if export:
        click.echo("\n".join(map(str, calibrated.export(export))))
        return
    if output and not file:
        raise HeddleError(
            f"--from {output}: give that machine's file by --machine FILE.toml; `heddle machine` writes it"
        )
    target = out or file
    if target is None:
        raise HeddleError("name the file to write: --out FILE.toml")
    text = files.read_text(file) if file else machinefile.write(machinefile.read(Path("/")), target.stem)[0]
    measured = calibration.read(output) if output else calibration.here()
    text, rows = calibrated.apply(text, str(file or target), measured)
    files.write_text(target, text)
    _listing(("ns", "machine", "interval", "guest, / slowdown"), [tuple(row) for row in rows])
    click.echo(target)


@cli.command()
def workloads() -> None:
    """List the workloads with their parameters."""
    rows = []
    for load in map(workload.load, tomlfile.names(paths.WORKLOADS)):
        rows.append((load.name, "", "", load.summary))
        rows += [("", f"{name}={about.default}", about.unit, about.summary) for name, about in load.params.items()]
    _listing(("workload", "parameter", "unit", "what it is"), rows)


@cli.command()
def experiments() -> None:
    """List the experiments."""
    loaded = [experiment.load(name) for name in tomlfile.names(paths.EXPERIMENTS)]
    _listing(("experiment", "what it shows"), [(one.name, one.summary) for one in loaded])


@cli.command(name="kernels")
def list_kernels() -> None:
    """List the kernels that setup fetched."""
    _listing(("kernel", "release"), sorted(kernels.known().items()))


@cli.command()
@click.option("--machine", "machine_name", default=experiment.DEFAULT_MACHINE, show_default=True, metavar="M")
@click.option("--kernel", "kernel_name", default=experiment.DEFAULT_KERNEL, show_default=True, metavar="K")
@click.option("--sched", default=scheduler.EEVDF, show_default=True, metavar="NAME[=COMMAND]")
@click.option("--layer", "named", multiple=True, metavar="L", help="An image layer beside the base.")
@click.option("--file", "host_files", multiple=True, metavar="HOST[:GUEST]", help=_FILE_HELP)
@click.option("--package", "packages", multiple=True, metavar="P", help="A Debian package for the guest.")
def shell(
    machine_name: str,
    kernel_name: str,
    sched: str,
    named: tuple[str, ...],
    host_files: tuple[str, ...],
    packages: tuple[str, ...],
) -> None:
    """Boot a guest and open its console here; `exit` powers it off."""
    layers = (*named, *image.of_packages(packages))
    given = hostfiles.with_libraries(hostfiles.named(host_files), layers, "--file")
    started = scheduler.parse(sched)
    started.check(layers)
    started.check_options()
    vm.console(
        vm.Guest(
            machine=machine.load(machine_name),
            kernel=kernels.find(kernel_name),
            job=Job(scheduler=started.command(), shell=True),
            layers=layers,
            files=started.files(layers),
            job_files=hostfiles.contents(given),
        )
    )


@cli.command(name="pages")
@click.option("--check", is_flag=True, help="Write nothing; exit status 1 if a page is not as it should be.")
def note_versions(check: bool) -> int:
    """Say in each page which of its tables were measured by another version of the scheduler or the laboratory."""
    wrong = [page for page in pages.all_pages() if (pages.is_wrong(page) if check else pages.update(page))]
    for page in wrong:
        where = os.path.relpath(page)
        click.echo(f"{where}: its note on tables of other versions is wrong: run `make pages`" if check else where)
    return 1 if check and wrong else 0


@cli.command(name="doctor")
def examine() -> int:
    """Say whether this machine can load scx_heddle and run guests; exit status 1 if anything but root is missing."""
    found = list(doctor.laboratory())
    lines, loads = doctor.scheduler()
    click.echo("to measure schedulers in guests (bin/heddle run):")
    for finding in found:
        click.echo(f"  {finding}")
    click.echo("to load scx_heddle on this machine (sudo bin/scx_heddle):")
    for line in lines:
        click.echo(f"  {line}")
    return 0 if loads and not any(finding.missing for finding in found) else 1


@cli.command(name="manual")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
def write_manual(folder: Path) -> None:
    """Write heddle(1), a page for each command, and shell completions to DIR."""
    for file in manual.write(cli, folder):
        click.echo(file)


def _console() -> Console:
    """Return stdout; in a pipe or a file the tables are as wide as they need, without blanks at the end of a line."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE, file=_Trimmed())


class _Trimmed(io.StringIO):
    """Stdout for whole lines, as a console prints them."""

    def write(self, text: str) -> int:
        """Write text, less the blanks before each of its line ends."""
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        """Flush stdout."""
        sys.stdout.flush()


_WIDE = 10_000
"""columns; more than any row has"""
