"""Traced cells: what is recorded in the guest beside a measured step, and the metrics that come of it.

Recording costs the guest several hundred instructions an event, which changes what is measured. So a traced cell is
a boot of its own, the twin of a cell that is not traced: the workload's own metrics come from the quiet twin, the
scheduler's from the recorded one, and `trace_perturbation` says how far the two differ.
"""

import json
from typing import Any

from heddle_lab import kernels, units
from heddle_lab.errors import HeddleError
from heddle_lab.job import CgroupSet, Job, Step, Trace, Write
from heddle_lab.machine import Machine
from heddle_lab.measures import (
    affinity,
    cost,
    fairness,
    groups,
    idle,
    latency,
    missed,
    packing,
    ringbuffer,
    switches,
    timeline,
)
from heddle_lab.measures.events import Events
from heddle_lab.results import Results
from heddle_lab.tomlfile import Model

PERTURBATION = "trace_perturbation"
"""elapsed_ns of the recorded twin over that of the quiet one, less 1"""

EVENTS = (
    *("sched:sched_switch", "sched:sched_waking", "sched:sched_wakeup", "sched:sched_wakeup_new"),
    *("sched:sched_process_fork", "sched:sched_process_exec", "sched:sched_process_exit"),
    *(groups.EVENT, affinity.EVENT),
)
"""beside those of `cost`"""

_PROBES_STEP, _SILENT_STEP, _RECORDED_STEP = "trace-probes", "trace-cost-silent", "trace-cost-recorded"

_COST_CPU = 1
_COST_TRIPS = 200
_COST_ARGV = ["heddle-load", "pingpong", "--cpus", str(_COST_CPU), "--count", str(_COST_TRIPS)]
"""switches and wakeups alone, on one CPU: what recording adds to them is the cost of its events"""

_BUFFER_SHARE = 4
"""the buffers take at most one part in so many of the guest's memory"""

_BUFFER_KB = 16_384
"""of each CPU at most; some 80,000 switches with their wakeups"""


class Kind(Model):
    """What a metric is, for tables."""

    unit: str
    better: str
    judged: bool = True
    """compared between schedulers; else only recorded"""


METRICS = {
    "wasted_idle": Kind(unit=units.SHARE, better="lower"),
    "wasted_idle.lasting": Kind(unit=units.SHARE, better="lower"),
    "missed_idle": Kind(unit=units.SHARE, better="lower", judged=False),
    "misplaced": Kind(unit=units.SHARE, better="lower"),
    "misplaced.lasting": Kind(unit=units.SHARE, better="lower", judged=False),
    "better_idle": Kind(unit=units.SHARE, better="lower", judged=False),
    "better_idle.lasting": Kind(unit=units.SHARE, better="lower", judged=False),
    "packed": Kind(unit=units.SHARE, better="higher"),
    "max_lag_ns": Kind(unit="ns", better="lower"),
    "share_error": Kind(unit=units.SHARE, better="lower"),
    "wakeup_latency_ns.p50": Kind(unit="ns", better="lower"),
    "wakeup_latency_ns.p99": Kind(unit="ns", better="lower"),
    "wakeup_latency_ns.p999": Kind(unit="ns", better="lower", judged=False),
    "sched_insns_per_switch": Kind(unit="instructions", better="lower"),
    "migrations.core": Kind(unit="", better="lower", judged=False),
    "migrations.llc": Kind(unit="", better="lower", judged=False),
    "migrations.node": Kind(unit="", better="lower", judged=False),
}
"""what `measure` returns; a workload's own metric of the same name takes precedence, with or without a trace"""


QUANTILES = (*range(0, 1000, 25), 990, 999, 1000)
"""of `latency_quantiles`, in thousandths"""


def steps(plain: list[Step], measured: str, machine: Machine, release: str) -> list[Step]:
    """Return the steps of a traced cell: the cost of recording first, then the workload with its step recorded.

    Args:
        plain: the workload's steps.
        measured: name of the step to record.
        machine: decides the buffers' size.
        release: of the kernel; one before 6.16 has no tracepoints around `__schedule()`.

    Raises:
        HeddleError: the step runs in the background, where nothing tells when it begins and ends.
    """
    buffer_kb = max(64, min(_BUFFER_KB, machine.memory_mib * 1024 // _BUFFER_SHARE // machine.cpus))
    timed = kernels.version(release) >= (6, 16)
    trace = Trace(events=[*EVENTS, *(cost.EVENTS if timed else ())], format="raw", buffer_kb=buffer_kb)
    if any(step.name == measured and step.background for step in plain):
        raise HeddleError(f"step '{measured}' runs in the background and cannot be traced: run without --trace")
    # The file takes several definitions in one write, and forgets its old ones at each.
    probes = "\n".join([affinity.probe(machine.cpus), *(cost.PROBES if timed else ())])
    return [
        Step(name=_PROBES_STEP, action=Write(path="/sys/kernel/tracing/dynamic_events", value=probes)),
        Step(name=_SILENT_STEP, argv=_COST_ARGV),
        Step(name=_RECORDED_STEP, argv=_COST_ARGV, trace=trace),
        *(step.model_copy(update={"trace": trace}) if step.name == measured else step for step in plain),
    ]


def events_of(results: Results, step: str) -> Events:
    """Return the events of a traced step.

    Raises:
        HeddleError: it was not traced, or the buffers were too small.
    """
    try:
        return ringbuffer.parse_block(results.trace_text, step)
    except HeddleError as error:
        mend = "; do less in the step, or give the machine more memory_mib (a quarter of it is for the trace)"
        raise HeddleError(f"{error}{mend if 'lost' in str(error) else ''}") from error


def line_of(events: Events, results: Results) -> timeline.Timeline:
    """Return the timeline of a step's events on all CPUs of the guest."""
    return timeline.build(events, cpus=len(topology(results)) or None)


def topology(results: Results) -> list[dict[str, Any]]:
    """Return the CPUs as the guest saw them: `cpu`, `core`, `llc`, `node`, `siblings`."""
    ready = results.of("ready")
    return list(ready[0].get("topology", [])) if ready else []


def measure(results: Results, job: Job, step: str, machine: Machine) -> dict[str, int | float]:
    """Return the metrics of a traced step, by the names of `METRICS`; those that do not apply are absent.

    Args:
        results: of the traced boot.
        job: says what tracepoints do not: the weights of cgroups.
        step: the recorded step.
        machine: for its CPUs' speeds and cores.

    Raises:
        HeddleError: it was not traced, or events were lost.
    """
    events = events_of(results, step)
    line = line_of(events, results)
    where = affinity.find(events)
    speeds = [cpu.speed for cpu in machine.layout()]
    woken = latency.quantiles(latency.wakeup_latencies(line))
    moved = switches.migrations(line, switches.places(topology(results)))
    event = cost.event_insns(
        _elapsed_ns(results, _SILENT_STEP),
        _elapsed_ns(results, _RECORDED_STEP),
        len(events_of(results, _RECORDED_STEP)),
        speeds[_COST_CPU],
    )
    per_switch = cost.insns_per_switch(events, speeds, event)
    return {
        "wasted_idle": idle.wasted_idle(line, where).fraction,
        "wasted_idle.lasting": idle.wasted_idle(line, where, idle.GRACE_NS).fraction,
        "missed_idle": missed.missed_idle(line, where).fraction,
        **_packing(line, where, machine),
        **_fairness(events, line, job),
        **{f"wakeup_latency_ns.{name}": woken[name] for name in ("p50", "p99", "p999") if name in woken},
        **({} if per_switch is None else {"sched_insns_per_switch": per_switch}),
        **{f"migrations.{name}": moved[name] for name in ("core", "llc", "node")},
    }


def latency_quantiles(results: Results, step: str) -> list[int]:
    """Return wakeup-to-run latencies of a traced step, ns, at each of `QUANTILES`; empty if nothing was woken."""
    ordered = latency.wakeup_latencies(line_of(events_of(results, step), results))
    return [int(ordered[max(0, -(-len(ordered) * part // 1000) - 1)]) for part in QUANTILES] if len(ordered) else []


def _packing(line: timeline.Timeline, where: affinity.Affinity, machine: Machine) -> dict[str, int | float]:
    """Return how well cores were chosen; nothing where all are equal and have one thread."""
    layout = machine.layout()
    if not packing.differ(layout):
        return {}
    found = packing.misplaced(line, where, layout)
    lasting = packing.misplaced(line, where, layout, idle.GRACE_NS)
    part = packing.packed(line, layout, machine.clock.smt)
    return {
        "misplaced": found.misplaced,
        "misplaced.lasting": lasting.misplaced,
        "better_idle": found.better_idle,
        "better_idle.lasting": lasting.better_idle,
        **({} if part is None else {"packed": part}),
    }


def _fairness(events: Events, line: timeline.Timeline, job: Job) -> dict[str, int | float]:
    """Return lag and share error; nothing beside SCHED_IDLE tasks, whose weight no tracepoint shows."""
    if any(step.policy == "idle" for step in job.steps):
        return {}
    weights = {
        action.cgroup: float(action.value)
        for action in (step.action for step in job.steps)
        if isinstance(action, CgroupSet) and action.file == "cpu.weight"
    }
    found = fairness.measure(line, groups.shares(events, weights))
    return {"max_lag_ns": found.max_lag_ns, "share_error": found.share_error}


def _elapsed_ns(results: Results, step: str) -> int:
    return int(json.loads(results.step(step).stdout)["elapsed_ns"])
