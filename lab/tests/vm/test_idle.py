"""Idle CPUs: what scx_heddle knows of them, and whether wakees find them."""

import re
from typing import Any

import pytest

from heddle_lab.job import Step, Trace
from heddle_lab.results import Results
from tests.conftest import Boot
from tests.vm.test_core import HEDDLE

pytestmark = pytest.mark.vm

MACHINE, CPUS = "smp-16-2llc", 16


def schbench(name: str, load: float, requests: int = 600, **fields: Any) -> Step:
    """Wakees that compute for 0.2 ms."""
    argv = ["heddle-load", "schbench", "--load", str(load), "--cpus-online", str(CPUS)]
    argv += ["--request-insns", "200000", "--think-us", "100", "--requests", str(requests)]
    return Step(name=name, argv=argv, **fields)


def dump(name: str) -> Step:
    """SysRq-D, whose text the kernel writes to a tracepoint."""
    argv = ["bash", "-c", "sleep 0.05; echo D > /proc/sysrq-trigger"]
    return Step(name=name, argv=argv, trace=Trace(events=["sched_ext:sched_ext_dump"]))


def dumped_cpus(results: Results) -> list[tuple[bool, bool]]:
    """Return for each CPU of the one dump whether it ran the idle task, and whether it could be claimed."""
    text = "\n".join(re.findall(r"sched_ext_dump: ?(.*)", results.trace_text))
    cpus = re.findall(r"CPU \d+ .*?curr=(\S+)\[(\d+)\].*?known=(\d)", text, re.DOTALL)
    return [(pid == "0", known == "1") for _, pid, known in cpus]


def test_when_all_is_quiet_the_mask_is_the_set_of_idle_cpus(boot: Boot) -> None:
    """After a load with wakeups, preemption and CPUs that come and go, every idle CPU can be claimed, no other."""
    online = "echo {} > /sys/devices/system/cpu/cpu5/online"
    load = [
        schbench("load", 1.25, background=True),
        Step(name="hotplug", argv=["bash", "-c", f"{online.format(0)}; {online.format(1)}"]),
        Step(name="messages", argv=["hackbench", "-g", "2", "-f", "4", "-l", "100"]),
    ]
    results = boot([*load, dump("dump")], machine=MACHINE, sched=HEDDLE).check()
    cpus = dumped_cpus(results)
    assert len(cpus) == CPUS
    assert all(idle == known for idle, known in cpus), cpus
    assert sum(idle for idle, _ in cpus) >= CPUS - 2
