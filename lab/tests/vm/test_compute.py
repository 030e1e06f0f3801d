"""Loads that compute by one instruction of the clock, and the same ones that execute a loop of as many."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle_lab import kernels, machine, vm
from heddle_lab.experiment import DEFAULT_KERNEL
from heddle_lab.job import Job
from tests.conftest import Boot, Record
from tests.vm.beside import load
from tests.vm.machines import plain

pytestmark = pytest.mark.vm

APART_NS = 10_000
"""a loop ends its turns a few instructions late, which shifts the ticks that the kernel counts time by"""

Times = Callable[[dict[str, Any]], list[float]]

REQUESTS = ["--request-insns", 200_000, "--think-us", 100, "--requests", 200, "--warm-up-ms", 0]
ALONE_INSNS = 3_456_789
LOADS: dict[str, tuple[list[object], Times]] = {
    "alone": (
        ["contend", "barrier", "--threads", 1, "--count", 1, "--work-insns", ALONE_INSNS],
        lambda report: [report["elapsed_ns"]],
    ),
    "woken by a timer": (
        ["periodic", "--period-us", 1000, "--work-insns", 300_000, "--for-ms", 50],
        lambda report: [report[what][which] for what in ("late_ns", "done_ns") for which in ("p50", "mean")],
    ),
    "woken by each other": (
        ["pingpong", "--count", 200, "--work-insns", 20_000, "--cpus", 1],
        lambda report: [report["one_way_ns"]],
    ),
    "requests": (
        ["schbench", "--load", 0.5, "--cpus-online", 4, *REQUESTS],
        lambda report: [report[what]["p50"] for what in ("wakeup_latency_ns", "request_latency_ns")],
    ),
    "a hog": (
        ["spin", "--threads", 1, "--cpus", 1, "--for-ms", 20],
        lambda report: [report["threads"][0]["cpu_ns"]],
    ),
    "two hogs on a CPU": (
        ["spin", "--threads", 2, "--cpus", 1, "--for-ms", 20],
        lambda report: [sum(thread["cpu_ns"] for thread in report["threads"]) / 2],
    ),
}
"""name -> arguments of heddle-load, and the times to be compared: such that a tick more or less does not decide"""


def test_loads_take_the_same_time(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    steps = [load(name, *argv) for name, (argv, _) in LOADS.items()]
    one, many = (boot(steps, machine=plain(tmp_path, 4), compute=compute).check() for compute in (True, False))
    for name, (_, times_of) in LOADS.items():
        ours, loops = (times_of(json.loads(run.step(name).stdout)) for run in (one, many))
        record_property(f"{name} on {boot.kernel}, and by loops, ns", (ours, loops))
        assert ours == pytest.approx(loops, abs=APART_NS), name


def test_the_clock_counts_what_a_load_computes() -> None:
    """Without COMPUTE the loads above would execute loops both times, and agree."""
    alone = Job(seed=1, timeout_ns=1_000_000_000, scheduler=None, steps=[load("alone", *LOADS["alone"][0])])
    guest = vm.Guest(machine=machine.load("smp-4"), kernel=kernels.find(DEFAULT_KERNEL), job=alone)
    results = vm.run(guest, cold=True).check()
    computed = sum(cpu["computed"] for cpu in results.clock["cpus"])
    assert computed == pytest.approx(ALONE_INSNS, rel=0.001)
