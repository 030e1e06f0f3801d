"""Traced cells on real kernels: the measures against what must be so."""

import json

import pytest

from heddle_lab import resultfile, tracing, vm
from heddle_lab.measures import groups
from heddle_lab.resultfile import CellResult
from heddle_lab.results import Results
from tests.vm.cells import cell_of

pytestmark = [pytest.mark.vm, pytest.mark.every_kernel]


def measured(kernel: str, argv: list[str], sched: str = "eevdf") -> tuple[CellResult, Results, Results]:
    """Boot a cell and its traced twin; the step runs in cgroup a/b."""
    cell = cell_of(kernel, argv, sched, costs=False)
    quiet, traced = (vm.run(one.guest()).check() for one in (cell, cell.twin()))
    return resultfile.from_cell(cell, quiet, traced), quiet, traced


@pytest.mark.parametrize("sched", ["eevdf", "scx_heddle"])
def test_a_pair_on_one_cpu(kernel: str, sched: str) -> None:
    # So long that the start of the program, which does not take the same time twice, does not outweigh the trace.
    result, quiet, traced = measured(kernel, ["pingpong", "--cpus", "1", "--count", "8000"], sched)
    metrics = result.metrics
    one_way = json.loads(quiet.step("load").stdout)["one_way_ns"]
    # The threads go to their CPU once; on a machine of one LLC there is no further way to go.
    assert metrics["migrations.core"] < 10
    assert metrics["migrations.llc"] == metrics["migrations.node"] == 0
    if kernel == "6.12":  # It has no tracepoints in __schedule().
        assert "sched_insns_per_switch" not in metrics
    else:
        # The scheduler's part of a round trip's half is a part of it, and not a small one; nothing else is in it.
        assert one_way / 4 < metrics["sched_insns_per_switch"] < one_way
    assert 0 < metrics["wakeup_latency_ns.p50"] <= metrics["wakeup_latency_ns.p99"] < 50_000
    assert metrics["wasted_idle"] < 0.01
    # Free CPUs do not help the pair; once in a while a free worker of the kernel is behind one that is bound.
    assert metrics["wasted_idle.lasting"] < 0.001
    assert metrics["missed_idle"] < 0.001
    assert metrics["switches"] == pytest.approx(16_000, rel=0.02)
    assert metrics["trace_perturbation"] > 0
    events = tracing.events_of(traced, "load")
    assert set(groups.shares(events, {}).groups.values()) == {"a/b"}


def test_hogs_that_may_not_run_elsewhere_waste_no_cpu_and_free_ones_that_do_are_even(kernel: str) -> None:
    pinned = measured(kernel, ["spin", "--threads", "2", "--cpus", "1", "--for-ms", "200"])[0].metrics
    assert pinned["wasted_idle"] < 0.01
    # The ideal, which knows no affinity, has done each hog's 100 ms after 100 ms; the one CPU has done 50 by then, but
    # for what a turn is off.
    assert pinned["max_lag_ns"] == pytest.approx(50_000_000, rel=0.1)
    free = measured(kernel, ["spin", "--threads", "4", "--for-ms", "40"])[0].metrics
    assert free["share_error"] < 0.02
    assert free["max_lag_ns"] < 5_000_000
    assert free["ipis"] > 0
