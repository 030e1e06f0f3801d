"""`heddle fidelity`: compare this machine's effects with those of the clock's model of it."""

from pathlib import Path
from typing import Any

import click

from heddle_lab import agreement, backends, contrasts, files, machine
from heddle_lab.backends.clock import Clock
from heddle_lab.backends.host import Host
from heddle_lab.cli import outcomes, stdout
from heddle_lab.progress import Reporter


@click.command(name="fidelity")
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
    stdout.listing(agreement.HEADINGS, [tuple(cell.replace("*", "") for cell in row) for row in agreed.rows()])
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
    done = []
    by: tuple[backends.Backend, backends.Backend] = (here, Clock())
    for backend, plan, at_a_time in zip(by, planned, (None, jobs), strict=True):
        cells = contrasts.in_order(plan)
        how = {"jobs": at_a_time, "dask_address": None, "fresh": False, "cold": False}
        with Reporter(len(cells)) as reporter:
            done.append(backend.run(cells, how, reporter))
        for line in outcomes.failure_lines(done[-1].failures):
            click.echo(f"heddle: {line}", err=True)
        if done[-1].interrupted:
            raise click.Abort
    found = contrasts.run_of(box_file, planned, (done[0].results, done[1].results))
    click.echo(contrasts.write(out, found))
    return found, any(outcome.failures for outcome in done)
