"""Every TOML file that is shipped: it loads, and what it names exists and fits; and the tables made from them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_lab import comparison, experiment, html, machine, markdown, paths, resultfile, tomlfile, workload
from heddle_lab.experiment import Experiment
from heddle_lab.machine import Machine
from heddle_lab.workload import Value, Workload

KERNELS = {"6.18", "7.3"}
"""what set-up fetches (setup/pins.toml)"""

MACHINES = tomlfile.names(paths.MACHINES)
WORKLOADS = tomlfile.names(paths.WORKLOADS)
SUITE = sorted({*WORKLOADS} - {"command"})
"""all but the one whose program is the user's"""
EXPERIMENTS = tomlfile.names(paths.EXPERIMENTS)
TABLES = sorted((paths.REPOSITORY / "docs" / "results").glob("*/table.md"))


@pytest.mark.parametrize("name", MACHINES)
def test_machine_is_called_like_its_file(name: str) -> None:
    assert machine.load(name).name == name


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_makes_a_job_on_every_machine(name: str) -> None:
    load = workload.load(name)
    assert load.name == name
    for box in map(machine.load, MACHINES):
        assert load.job_steps(load.parameters({}), box, seed=1)


@pytest.mark.parametrize("name", SUITE)
def test_workload_states_its_warm_up_and_its_window(name: str) -> None:
    """A time is half a second or more, after a fifth or more; tbench cannot be told a warm-up below a second."""
    load = workload.load(name)
    params = load.parameters({})
    assert load.window is not None
    assert load.window == "for_ms" or "for_ms" not in params
    if load.window == "for_ms":
        assert params["for_ms"] >= 500
        assert name == "tbench" or params["warm_up_ms"] >= 200
    value = params[load.window]
    assert isinstance(value, int | float)
    longer = load.parameters(params | {load.window: 2 * value})
    box = machine.load("smp-4")
    assert load.job_steps(longer, box, seed=1) != load.job_steps(params, box, seed=1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_metrics_are_told_apart_and_used_as_designed(name: str) -> None:
    """`better` and the units decide the verdicts and how numbers are printed."""
    metrics = workload.load(name).metrics
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    for metric in metrics:
        if metric.name == "throughput":
            assert (metric.unit.endswith("/s"), metric.better) == (True, "higher")
        if "_ns" in metric.name:
            assert (metric.unit, metric.better) == ("ns", "lower")


def test_the_suite_has_every_workload() -> None:
    assert sorted({point.name for point in experiment.load("suite").workloads}) == SUITE


def points(wanted: Experiment) -> Iterator[tuple[Workload, dict[str, Value], Machine]]:
    for point in wanted.workloads:
        load = workload.load(point.name)
        for params in point.sweep():
            for name in wanted.machines:
                yield load, load.parameters(params), machine.load(name)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_names_what_exists(name: str) -> None:
    wanted = experiment.load(name)
    assert wanted.name == name
    assert set(wanted.kernels) <= KERNELS
    assert wanted.variants or wanted.schedulers[0] == "eevdf" or "=" in wanted.schedulers[0]
    for load, params, box in points(wanted):
        assert load.job_steps(params, box, seed=1)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.parent.name)
def test_published_table_stands_below_the_command_that_makes_it(table: Path) -> None:
    """`make bench` runs that."""
    [command] = re.findall(r"^`bin/heddle run (.*)`$", table.read_text(), re.MULTILINE)
    wanted, *options = shlex.split(command)
    assert wanted.removeprefix("lab/experiments/").removesuffix(".toml") in EXPERIMENTS
    assert options[-2:] == ["--out", f"docs/results/{table.parent.name}"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.parent.name)
def test_published_table_and_page_are_what_report_makes_of_the_results(table: Path) -> None:
    folder = table.parent
    cells, about = resultfile.read(folder), resultfile.about(folder)
    rows = comparison.variants(cells, about.looks)
    assert table.read_text() == markdown.render(rows, about)
    assert (folder / html.NAME).read_text() == html.render(about, cells, rows, html.pictures(folder, about, cells))
