"""Every shipped workload on a real kernel, as small as it gets: programs are in the image, numbers are found."""

import math
from collections.abc import Sequence

import pytest

from heddle_lab import machine, paths, tomlfile, workload
from heddle_lab.job import KillStep, Step, WaitStep
from heddle_lab.results import Results
from heddle_lab.workload import Value, Workload
from tests.conftest import Boot

pytestmark = pytest.mark.vm

SMALL: dict[str, dict[str, Value]] = {
    "cyclictest": {"warm_up_ms": 20, "for_ms": 20},
    "groups": {"load": 1.0, "warm_up_ms": 48, "for_ms": 192, "limits": "0,0.5", "depth": 3, "weights": "100,300"},
    "hackbench": {"loops": 20},
    "hogs": {"warm_up_ms": 10, "for_ms": 20},
    "memcached": {"warm_up_ms": 10, "for_ms": 30, "connections": 2, "rate": 5000},
    "netperf-tcp-rr": {"count": 100},
    "nginx": {"warm_up_ms": 60, "for_ms": 30},
    "rt-app": {},
    "schbench": {"warm_up_ms": 10, "for_ms": 20},
    "stress-ng": {"ops": 100},
    "tbench": {"for_ms": 30},
    "turns": {"run_ms": 5, "sleep_ms": 5, "warm_up_ms": 10, "for_ms": 30},
}
LARGE: dict[str, dict[str, Value]] = {
    "compile": {"units": 1.0, "hogs": 0.5},
    "netperf-udp-rr": {"count": 100},
    "perf-messaging": {"loops": 5},
    "perf-pipe": {"loops": 200, "depth": 2},
    "sysbench-oltp": {"transactions": 2, "rows": 400},
}
"""workload -> parameters; those of a group share a boot, with the large image layers in the second (and with one
netserver each)"""

BOX = machine.load("smp-4")


def prefixed(name: str, step: Step) -> Step:
    """Return a step whose name is its own among those of several workloads."""
    changes: dict[str, object] = {"name": f"{name}/{step.name}"}
    if isinstance(step.action, KillStep | WaitStep):
        changes["action"] = step.action.model_copy(update={"step": f"{name}/{step.action.step}"})
    return step.model_copy(update=changes)


def steps_of(load: Workload, params: dict[str, Value]) -> list[Step]:
    return [prefixed(load.name, step) for step in load.job_steps(params, BOX, seed=1)]


def results_of(name: str, results: Results) -> Results:
    """Return what one workload would have reported alone."""
    records = [
        record | {"name": record["name"].removeprefix(f"{name}/")}
        for record in results.of("step")
        if record["name"].startswith(f"{name}/")
    ]
    return results.model_copy(update={"records": records})


def layers(loads: Sequence[Workload]) -> list[str]:
    return sorted({layer for load in loads for layer in load.layers})


def test_no_workload_is_forgotten() -> None:
    assert sorted({*SMALL, *LARGE, "command"}) == tomlfile.names(paths.WORKLOADS)


@pytest.mark.parametrize(
    ("boot", "points"), [("6.18", SMALL), ("7.3", LARGE)], indirect=["boot"], ids=["small", "large"]
)
def test_every_metric_is_found(boot: Boot, points: dict[str, dict[str, Value]]) -> None:
    loads = [workload.load(name) for name in points]
    params = {load.name: load.parameters(points[load.name]) for load in loads}
    steps = [step for load in loads for step in steps_of(load, params[load.name])]
    results = boot(steps, sched="scx_heddle", layers=layers(loads)).check()
    for load in loads:
        found = load.measure(results_of(load.name, results), params[load.name], BOX)
        # Of so few samples, no percentile but the median has enough beyond it.
        few = {metric.name for metric in load.metrics if metric.samples and not metric.name.endswith(".p50")}
        assert {metric.name for metric in load.metrics} - few <= found.keys()
        for metric in (metric for metric in load.metrics if metric.name in found):
            number = found[metric.name]
            assert math.isfinite(number), f"{load.name}: {metric.name}"
            if metric.unit == "ns" or metric.unit.endswith("/s"):
                assert number > 0, f"{load.name}: {metric.name}"
