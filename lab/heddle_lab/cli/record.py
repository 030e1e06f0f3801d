"""`heddle record`: turn a trace into a workload."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from heddle_lab import (
    experiment,
    fidelity,
    files,
    kernels,
    machine,
    recording,
    rehearsal,
    selection,
    tracefile,
    units,
)
from heddle_lab.cli import options, stdout
from heddle_lab.errors import HeddleError
from heddle_lab.fidelity import Fidelity
from heddle_lab.machine import Machine
from heddle_lab.selection import Selection

_STRETCHES = ", ".join(f"{one:g}" for one in rehearsal.STRETCHES)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="TRACE")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="W.toml", help="Default: TRACE.toml.")
@click.option("--source", default="", metavar="TEXT", help="Which machine, which load: goes into the file.")
@click.option("--only", multiple=True, metavar="TASK", help="A name (* is any text), a pid, or a cgroup's path.")
@click.option("--exclude", multiple=True, metavar="TASK", help="Likewise; excluded tasks do not run in the replay.")
@click.option(
    "--cgroups", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=f"Output of `{selection.HOW}`."
)
@click.option(
    "--from-ms", type=options.Milliseconds(min=0), default=0.0, metavar="MS", help="Begin of the part that is kept."
)
@click.option(
    "--for-ms", type=options.Milliseconds(min=1), metavar="MS", help="Its length; default: to the trace's end."
)
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
    recorded = _read(file, part)
    name = re.sub("[^a-z0-9]+", "-", target.stem.lower()).strip("-") or "recorded"

    def write(stretch: float) -> Path:
        files.write_text(target, recording.workload(recorded, name, source or f"recorded: {file.name}", stretch))
        return target

    stretches = (part["stretch"],) if part["stretch"] else rehearsal.STRETCHES
    write(stretches[0])
    stdout.listing(recording.HEADINGS, [group.row() for group in recorded.groups])
    click.echo(f"Left out: {units.part(recorded.left_out)} of the CPU time: kernel threads, and what was not selected.")
    click.echo(target)
    if no_check:
        return 0
    box = machine.load(machine_name) if machine_name else rehearsal.box_of(recorded.cpus)
    found = rehearsal.best(recorded, write, box, kernels.find(kernel_name), stretches)
    return _show(found, recorded, box, target)


def _read(file: Path, part: Mapping[str, Any]) -> recording.Load:
    """Read the part of a trace that the options `--only`, `--exclude`, `--cgroups`, `--from-ms`, `--for-ms` name."""
    cgroups = selection.cgroups(part["cgroups"]) if part["cgroups"] else {}
    wanted = Selection(part["only"], part["exclude"], cgroups)
    span = recording.Span(round(part["from_ms"] * 1e6), part["for_ms"] and round(part["for_ms"] * 1e6))
    recorded = recording.of_trace(tracefile.read(file), str(file), wanted, span)
    if recorded.unread:
        lines = units.counted(recorded.unread, "line")
        what = f"{lines} not understood, first: {recorded.first_unread.strip()!r}"
        click.echo(f"heddle: {file}: {what}", err=True)
    return recorded


def _show(found: Fidelity, recorded: recording.Load, box: Machine, target: Path) -> int:
    """Print how a replay compares with its trace; return the exit status."""
    stdout.listing(("what", "trace", "replay", "apart", "at most"), [one.row() for one in found.compared])
    faults = found.mismatch(found.workload)
    if faults:
        why = fidelity.other_size(recorded, box.cpus, box.name)
        message = f"{fidelity.WORD} its trace: {faults}{why}; the file says so, and verdicts on it are unknown"
        click.echo(f"heddle: {target}: {message}", err=True)
    return 1 if faults else 0
