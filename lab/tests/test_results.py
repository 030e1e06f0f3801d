"""Records become results, and what went wrong becomes one line."""

import json
from pathlib import Path

import pytest

from heddle_lab import experiment, resultfile, tracing
from heddle_lab.errors import HeddleError
from heddle_lab.results import Record, Results

STEP: Record = {"event": "step", "name": "go", "virtual_ns": 5, "elapsed_ns": 3, "exit": 0, "stdout": "hi"}
DONE: Record = {"event": "done", "virtual_ns": 6}


def make(*records: Record, failure: str | None = None, trace: str = "") -> Results:
    return Results(records=list(records), console="", trace_text=trace, wall_s=0.0, failure=failure)


def test_finished_job() -> None:
    results = make(STEP, DONE).check()
    assert results.step("go").stdout == "hi"
    assert results.virtual_ns == 6


CLAP = """error: unexpected argument '--no-such' found

Usage: x [OPTIONS]

For more information, try '--help'.
"""


@pytest.mark.parametrize(
    ("records", "failure", "line"),
    [
        (
            [{"event": "error", "step": "go", "message": "timed out", "virtual_ns": 1}, DONE],
            None,
            "step 'go': timed out",
        ),
        ([{"event": "error", "step": None, "message": "malformed job", "virtual_ns": 1}], "lost", "malformed job"),
        (
            [{"event": "scheduler", "state": "failed", "name": "x", "stderr": "a\nError: no BTF\n", "exit": 1}],
            None,
            "scheduler 'x' failed to attach: Error: no BTF",
        ),
        (
            [{"event": "scheduler", "state": "failed", "name": "x", "stderr": CLAP, "exit": 2, "virtual_ns": 1}],
            None,
            "scheduler 'x' failed to attach: error: unexpected argument '--no-such' found",
        ),
        (
            [{"event": "scheduler", "state": "died", "name": "x", "stderr": "", "exit": 3, "virtual_ns": 1}],
            None,
            "scheduler 'x' died (exit 3)",
        ),
        (
            [{"event": "scheduler", "state": "failed", "name": "x", "stdout": "a\nwaiting for a licence\n"}],
            None,
            "scheduler 'x' failed to attach: waiting for a licence",
        ),
        (
            [{"event": "scheduler", "state": "failed", "name": "x", "stdout": "no luck\n", "exit": 1}],
            None,
            "scheduler 'x' failed to attach: no luck",
        ),
        (
            [{"event": "scheduler", "state": "died", "name": "x", "stderr": "", "signal": 11}],
            None,
            "scheduler 'x' died (signal 11)",
        ),
        (
            [{"event": "scheduler", "state": "failed", "name": "x"}],
            None,
            "scheduler 'x' failed to attach (it ran on without attaching)",
        ),
        ([STEP], "the guest's kernel panicked after 'go'", "the guest's kernel panicked after 'go'"),
    ],
)
def test_errors_are_one_line(records: list[Record], failure: str | None, line: str) -> None:
    results = make(*records, failure=failure)
    assert results.error == line
    with pytest.raises(HeddleError, match=line.replace("(", r"\(").replace(")", r"\)")):
        results.check()


def test_missing_step_says_why() -> None:
    with pytest.raises(HeddleError, match="step 'go' did not finish: QEMU died"):
        make(failure="QEMU died").step("go")


TRACE = """{"step":"go","cpus":2,"lost":0}
# tracer: nop
#
           <...>-123     [001] d..2.     1.000250: sched_switch: prev_comm=my task prev_pid=123 prev_prio=120 \
prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
 kworker/u8:1-9      [000] d..3.     1.000100: sched_waking: comm=a-b pid=77 prio=120 target_cpu=001
{"end":"go"}
{"step":"other","cpus":2,"lost":4}
          <idle>-0       [000] d..3.     2.000000: sched_waking: comm=x pid=1 prio=120 target_cpu=000
{"end":"other"}
"""


def test_trace_is_parsed_in_order_of_time() -> None:
    waking, switch = make(trace=TRACE).trace(step="go")
    assert (waking.cpu, waking.time_ns, waking.comm, waking.fields["comm"]) == (0, 1_000_100_000, "kworker/u8:1", "a-b")
    assert (switch.cpu, switch.pid, switch.event) == (1, 123, "sched_switch")
    assert switch.fields["prev_comm"] == "my task"
    assert switch.fields["prev_state"] == "S"
    assert switch.fields["next_pid"] == "0"
    assert make(trace=TRACE).trace("sched_switch", step="go") == [switch]


def test_lost_events_are_not_passed_over() -> None:
    with pytest.raises(HeddleError, match="step 'other': 4 trace events were lost"):
        make(trace=TRACE).trace()


def test_a_percentile_left_out_is_not_the_trace_s_of_the_same_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache
    name = "wakeup_latency_ns.p99"
    (tmp_path / "w.toml").write_text(
        'name = "w"\nsummary = "s"\nsource = "s"\n[[steps]]\nname = "go"\nargv = ["heddle-load"]\n'
        f'[[metrics]]\nname = "{name}"\nstep = "go"\nunit = "ns"\nbetter = "lower"\nvalue = "p99"\nsamples = "count"\n'
    )
    wanted = experiment.Overrides(workloads=[str(tmp_path / "w.toml")], schedulers=["eevdf"], seeds=1).apply(None)
    [cell] = wanted.cells()
    monkeypatch.setattr(tracing, "measure", lambda *_: {name: 5, "wasted_idle": 0.5})
    monkeypatch.setattr(tracing, "latency_quantiles", lambda *_: [])
    for count, known in (999, {}), (1000, {name: 7}):
        said = json.dumps({"count": count, "p99": 7})
        step = {"event": "step", "name": "go", "virtual_ns": 9, "elapsed_ns": 7, "stdout": said}
        boot = make(step, {"event": "done", "virtual_ns": 10})
        found = resultfile.from_cell(cell, boot, boot)
        assert {key: value for key, value in found.metrics.items() if key == name} == known
        assert found.metrics["wasted_idle"] == 0.5
        assert {*found.provenance["metrics"]} == {name, "wasted_idle"}
