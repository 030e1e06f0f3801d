"""Loads that several modules put on scx_heddle."""

from typing import Any

from heddle_lab.job import Step

CPUS_PER_WAKER = 48
"""so that one thread, which wakes all others, is not what holds them up"""


def schbench(name: str, load: float, cpus: int, requests: int = 600, **fields: Any) -> Step:
    """Return a step of wakees that compute for 0.2 ms, with as many wakers as it takes to keep them busy.

    Args:
        name: of the step.
        load: runnable work as a multiple of the CPUs.
        cpus: how many the machine has.
        requests: after which the step ends.
        fields: more of the step.
    """
    argv = ["heddle-load", "schbench", "--load", str(load), "--cpus-online", str(cpus)]
    argv += ["--request-insns", "200000", "--think-us", "100", "--requests", str(requests), "--warm-up-ms", "5"]
    argv += ["--message-threads", str(-(-cpus // CPUS_PER_WAKER))]
    return Step(name=name, argv=argv, **fields)


def stress_ng(name: str, stressors: str, seconds: int, **fields: Any) -> Step:
    """Return a step of stress-ng, one process or pair of each stressor at once; it needs the layer `stress`.

    Args:
        name: of the step.
        stressors: their names, with blanks between.
        seconds: for how long, virtual time.
        fields: more of the step.
    """
    argv = ["stress-ng", "--with", stressors.replace(" ", ","), "--all", "1", "--timeout", f"{seconds}s"]
    argv += ["--temp-path", "/tmp", "--oomable"]  # noqa: S108 (nobody else is in the guest)
    return Step(name=name, argv=argv, **fields)
