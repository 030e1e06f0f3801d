"""Counters of scx_heddle over parts of a boot."""

import json
import os
from collections import Counter

from heddle_lab.job import SchedulerCommand, SchedulerStart, SchedulerStop, Sleep, Step
from heddle_lab.results import Results

PROGRAM = "/usr/local/bin/scx_heddle"
APART = ["--wake-sync-us", "0"]
"""no waker hands its CPU over"""
PATIENT = ["--wakeup-granularity-us", "1000"]
"""few wakees preempt"""
MS = 1_000_000

WAKES = int(os.environ.get("HEDDLE_WAKES", "100000"))
"""wakeups of a stress; `make stress` has 10 million"""

STRESS = "HEDDLE_WAKES" in os.environ
"""more of all else, too"""

INTERVAL_S = 0.2
KEPT = 64 << 10
"""bytes of a program's output: OUTPUT_CAP of the agent"""

_CONNECT_MS = 1_300
"""the printer looks for its scheduler once a second"""


def counted(name: str, options: list[str], steps: list[Step], interval_s: float = INTERVAL_S) -> list[Step]:
    """Return steps that run others under scx_heddle with counters, in a job whose own scheduler is scx_heddle.

    Args:
        name: of this part of the boot, for `counters`.
        options: of scx_heddle.
        steps: what is counted.
        interval_s: between two lines of counters; of all, the last `KEPT` bytes are kept.
    """
    argv = [PROGRAM, "--stats", str(interval_s), "--json", *options]
    return [
        Step(name=f"{name}: end of the one before", action=SchedulerStop()),
        Step(name=f"{name}: start", action=SchedulerStart(scheduler=SchedulerCommand(name=name, argv=argv))),
        Step(name=f"{name}: connect", action=Sleep(ns=_CONNECT_MS * MS)),
        *steps,
        Step(name=f"{name}: last interval", action=Sleep(ns=int(1_500 * interval_s) * MS)),
    ]


def counters(results: Results, name: str) -> Counter[str]:
    """Return the sums of the counters of a part."""
    [ended] = [one for one in results.of("scheduler") if one["name"] == name and one["state"] != "attached"]
    assert ended["state"] == "detached", ended["stderr"]
    total: Counter[str] = Counter()
    assert len(ended["stdout"]) < KEPT, f"{name}: the first lines are lost, the interval is too short"
    for line in ended["stdout"].splitlines():
        total.update(json.loads(line))
    return total
