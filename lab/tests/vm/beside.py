"""Loads in parts of one boot, under scx_heddle, and the same ones under EEVDF."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_lab.job import KillStep, Read, SchedulerStop, Sleep, Step, WaitStep
from heddle_lab.results import Results
from tests.conftest import Boot

HEDDLE = "scx_heddle"
STATE = "/sys/kernel/sched_ext/state"
MS = 1_000_000

HOUR_NS = 3_600_000 * MS

TICK_NS = 4 * MS
"""the kernels have HZ=250"""


def load(name: str, *arguments: object, **fields: Any) -> Step:
    """A step of heddle-load; in the background it may last as long as the test."""
    return Step(name=name, argv=["heddle-load", *map(str, arguments)], timeout_ns=HOUR_NS, **fields)


def pause(name: str, ms: int) -> Step:
    return Step(name=name, action=Sleep(ns=ms * MS))


def ends(*steps: Step) -> list[Step]:
    """Wait for the ends of steps in the background."""
    return [Step(name=f"end of {step.name}", action=WaitStep(step=step.name)) for step in steps]


def killed(*steps: Step) -> list[Step]:
    """End steps in the background."""
    return [Step(name=f"kill {step.name}", action=KillStep(step=step.name)) for step in steps]


Parts = Mapping[str, Sequence[Step]]
"""steps of each part of a boot by its name"""


@dataclass(frozen=True)
class Part:
    """What one part of a boot reported; the same names may stand in others."""

    results: Results
    name: str

    def stdout(self, step: str) -> str:
        return self.results.step(f"{self.name}: {step}").stdout

    def report(self, step: str) -> dict[str, Any]:
        """What heddle-load reported."""
        report: dict[str, Any] = json.loads(self.stdout(step))
        return report

    def threads(self, step: str, what: str) -> list[int]:
        """One number of each thread of `heddle-load spin`."""
        return [thread[what] for thread in self.report(step)["threads"]]


def part(name: str, steps: Sequence[Step]) -> Iterator[Step]:
    """Name steps after the part of the boot that they are, so that another part may have the same ones."""
    for step in steps:
        named: dict[str, object] = {"name": f"{name}: {step.name}"}
        if isinstance(step.action, WaitStep | KillStep):
            named["action"] = step.action.model_copy(update={"step": f"{name}: {step.action.step}"})
        yield step.model_copy(update=named)


def under_heddle(boot: Boot, parts: Parts, machine: str, **how: Any) -> dict[str, Part]:
    """Run parts one after the other under scx_heddle, which is still attached at the end."""
    steps = [step for name, steps in parts.items() for step in part(name, steps)]
    results = boot([*steps, Step(name="state", action=Read(path=STATE))], machine=machine, sched=HEDDLE, **how)
    assert results.check().step("state").stdout.strip() == "enabled"
    return {name: Part(results, name) for name in parts}


def under_both(boot: Boot, parts: Parts, machine: str, **how: Any) -> dict[str, tuple[Part, Part]]:
    """Run parts under scx_heddle, which is still attached at their end, then all under EEVDF."""
    ours, eevdf = ({f"{sched}, {name}": steps for name, steps in parts.items()} for sched in (HEDDLE, "eevdf"))
    stop = {"stop": [Step(name="state", action=Read(path=STATE)), Step(name="stop", action=SchedulerStop())]}
    steps = [step for name, steps in (ours | stop | eevdf).items() for step in part(name, steps)]
    results = boot(steps, machine=machine, sched=HEDDLE, **how).check()
    assert results.step("stop: state").stdout.strip() == "enabled"
    pairs = zip(ours, eevdf, strict=True)
    return {name: (Part(results, a), Part(results, b)) for name, (a, b) in zip(parts, pairs, strict=True)}
