"""`heddle workloads`, `heddle experiments` and `heddle kernels`: list what there is."""

import click

from heddle_lab import experiment, kernels, paths, tomlfile, workload
from heddle_lab.cli import stdout


@click.command()
def workloads() -> None:
    """List the workloads with their parameters."""
    rows = []
    for load in map(workload.load, tomlfile.names(paths.WORKLOADS)):
        rows.append((load.name, "", "", load.summary))
        rows += [("", f"{name}={about.default}", about.unit, about.summary) for name, about in load.params.items()]
    stdout.listing(("workload", "parameter", "unit", "what it is"), rows)


@click.command()
def experiments() -> None:
    """List the experiments."""
    loaded = [experiment.load(name) for name in tomlfile.names(paths.EXPERIMENTS)]
    stdout.listing(("experiment", "what it shows"), [(one.name, one.summary) for one in loaded])


@click.command(name="kernels")
def list_kernels() -> None:
    """List the kernels that setup fetched."""
    stdout.listing(("kernel", "release"), sorted(kernels.known().items()))
