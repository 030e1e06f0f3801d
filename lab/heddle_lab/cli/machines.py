"""`heddle machines`, `heddle machine` and `heddle calibrate`: list, write and measure machines."""

from pathlib import Path

import click

from heddle_lab import files, machine, paths, tomlfile
from heddle_lab.cli import stdout
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import calibrated, calibration, machinefile


@click.command()
def machines() -> None:
    """List the machines."""
    boxes = [machine.load(name) for name in tomlfile.names(paths.MACHINES)]
    boxes.sort(key=lambda box: (box.cpus, box.name))
    stdout.listing(
        ("machine", "CPUs", "LLCs", "threads", "what it is"),
        [(m.name, str(m.cpus), str(m.topology.llcs), str(m.topology.threads), m.summary) for m in boxes],
    )


@click.command(name="machine")
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


@click.command()
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
    stdout.listing(("ns", "machine", "interval", "guest, / slowdown"), [tuple(row) for row in rows])
    click.echo(target)
