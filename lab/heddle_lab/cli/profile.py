"""`heddle profile`: count the instructions of functions, or list the cache lines that move."""

import shlex
import sys
from pathlib import Path

import click

from heddle_lab import experiment, markdown, profile, transfers, workload
from heddle_lab.cell import Cell
from heddle_lab.cli import stdout
from heddle_lab.experiment import Overrides


@click.command(name="profile")
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
        stdout.listing(tuple(headings), [tuple(row) for row in rows])
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
