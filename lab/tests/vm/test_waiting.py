"""No CPU idles beside a task that waits elsewhere and may run there."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from heddle_lab.job import Step
from tests.conftest import Boot, Record
from tests.vm.beside import MS, TICK_NS, killed, load, pause, under_heddle
from tests.vm.machines import slow

pytestmark = [pytest.mark.vm, pytest.mark.every_kernel]

INSNS_PER_US = 250
"""of the slow machine"""

SPEED = INSNS_PER_US // 10

ALLOWED_NS = 2 * MS + TICK_NS + MS // 2
"""the other CPU is busy for 2 ms more; then a tick, and what looking takes on the slow machine"""


@dataclass(frozen=True)
class Line:
    """Pinned hogs on CPU 0, one of which runs, and what else there is.

    A task of nice 10 that computed there wakes up in debt, and stands behind them, while CPU 1 is busy for a moment.
    """

    waiting: int
    real_time: bool
    visitor: bool

    def __str__(self) -> str:
        more = [name for name, there in (("real-time", self.real_time), ("visitor", self.visitor)) if there]
        return ", ".join([f"behind {self.waiting}", *more])

    @property
    def period_us(self) -> int:
        """So long that the task has computed, so short that it is still in debt."""
        return 60_000 * (self.waiting + 1)

    @property
    def turns(self) -> int:
        """Long ones are few."""
        return 8 if self.waiting <= 20 else 4

    @property
    def work_us(self) -> int:
        """What the task computes: less than its fair share of CPU 0, which another class has a third of the time."""
        return 2_600 if self.real_time else 3_900

    def periodic(self, name: str, *argv: object, **fields: object) -> Step:
        timing = ["--period-us", self.period_us, "--for-ms", 3_600_000]
        return load(name, "periodic", *timing, *argv, background=True, **fields)

    def others(self) -> list[Step]:
        argv = ["spin", "--threads", self.waiting + 1, "--cpus", 0, "--for-ms", 3_600_000]
        steps = [load("line", *argv, background=True)]
        steps.append(self.periodic("busy", "--cpus", 1, "--phase-us", 0, "--run-us", 3_000))
        if self.visitor:  # comes and goes on CPU 2, where the task may not run
            argv = ["periodic", "--cpus", 2, "--period-us", 300, "--work-insns", 500, "--for-ms", 3_600_000]
            steps.append(load("visitor", *argv, background=True))
        if self.real_time:  # takes CPU 0 before the task wakes up, for the most of a turn
            phase, run = self.period_us * 9 // 10, self.period_us // 3
            argv = ["--cpus", 0, "--phase-us", phase, "--run-us", run]
            steps.append(self.periodic("taken", *argv, policy="fifo"))
        return steps

    def steps(self) -> list[Step]:
        timing = ["--period-us", self.period_us, "--phase-us", 1_000, "--for-ms", self.turns * self.period_us // 1_000]
        argv = ["--cpus", "0-1", "--home", 0, "--work-insns", self.work_us * INSNS_PER_US]
        others = self.others()
        return [*others, pause("settle", 100), load("task", "periodic", *timing, *argv, nice=10), *killed(*others)]


LINES = [
    *(Line(1, *more) for more in product((False, True), repeat=2)),
    *(Line(n, rt, True) for n in (5, 20) for rt in (False, True)),
    Line(70, real_time=False, visitor=True),
]


def test_a_task_behind_pinned_ones_goes_to_the_cpu_that_idles(
    boot: Boot, tmp_path: Path, record_property: Record
) -> None:
    """Kind: what is first in a line may not run on an idle CPU, what is behind it may."""
    parts = {str(line): line.steps() for line in LINES}
    turns = {str(line): line.turns for line in LINES}
    said = under_heddle(boot, parts, slow(tmp_path, "cores = 4", SPEED))
    wakeups = {name: said[name].report("task")["wakeup_ns"] for name in parts}
    waits = {name: (wakeup["max"], wakeup["count"]) for name, wakeup in wakeups.items()}
    record_property(f"longest wait beside an idle CPU on {boot.kernel}, ns, of how many", waits)
    assert all(count >= turns[name] // 4 for name, (_, count) in waits.items()), waits
    assert max(ns for ns, _ in waits.values()) <= ALLOWED_NS, waits
