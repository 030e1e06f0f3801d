"""`heddle verdict` and `heddle bisect`: find the kernel that is worse, by a criterion that both share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from heddle_lab import bisection, criterion, experiment, scheduler, stats, workload
from heddle_lab.backends.clock import Clock
from heddle_lab.cell import Cell
from heddle_lab.cli import options, outcomes
from heddle_lab.criterion import Criterion
from heddle_lab.errors import HeddleError
from heddle_lab.progress import Reporter
from heddle_lab.runner import Outcome


def _criterion(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that say what makes a kernel bad."""
    shared = [
        click.option("--workload", "load", required=True, metavar="W"),
        click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A workload's parameter."),
        click.option("--metric", metavar="NAME", help="Default: the workload's primary."),
        click.option("--machine", "machine_name", default=experiment.DEFAULT_MACHINE, show_default=True, metavar="M"),
        click.option("--sched", default=scheduler.EEVDF, show_default=True, metavar="COMMAND", help="On both kernels."),
        click.option(
            "--smallest",
            type=options.Percent(),
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
    for option in reversed(shared):
        command = option(command)
    return command


def _wanted(load: str, params: tuple[str, ...], machine_name: str, **how: Any) -> Criterion:
    """Return what the options of `_criterion` say."""
    values = dict(workload.parse_param(text) for text in params)
    return Criterion(workload=load, params=values, machine=machine_name, **how)


@click.command()
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

        status, line = wanted.judge(
            cells, measure, lambda some, found: outcomes.metrics(some, found.results, traced=False)[0]
        )
    except HeddleError as error:
        raise HeddleError(str(error), criterion.ABORT) from error
    click.echo(line)
    return status


@click.command(name="bisect")
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
