"""Is a replay like the trace that it was made of? What the file of a recorded load says of it, and when it is not."""

from collections.abc import Callable

import numpy as np

from heddle_lab import units
from heddle_lab.measures.events import Ints
from heddle_lab.recording import Load
from heddle_lab.tomlfile import Model

RATES = 0.10
"""most that utilisation, switches and wakeups of a faithful replay differ from the trace's, as a part of those"""

LENGTHS = 0.50
"""most that a run or a sleep differs, as a part of its length: the typical one, over all quantiles"""

CONCURRENCY = 0.25
"""most that the number of tasks that run or wait differs at a time, on average, as a part of its mean"""

POINTS = 0.01
"""of all CPU time: how far utilisation may differ beyond that; the kernel's own work is in it"""

FEW = 50
"""switches and wakeups a second per CPU that they may differ by beyond that: at 10 us each, 0.05 % of its time"""

_LEAST_NS = 1_000
"""shorter runs and sleeps count as this long: in the replay a system call takes as long"""

_FEWEST = 50
"""runs or sleeps of a trace, of fewer of which the lengths are chance and are not compared"""

_POINTS = np.linspace(0.005, 0.995, 100)
"""quantiles that are compared"""

WORD = "the replay does not match"
"""what a verdict says that rests on an unfaithful replay"""


class Compared(Model):
    """One quantity of the trace and of its replay."""

    what: str
    unit: str
    trace: float
    replay: float
    apart: float
    """how far the two are apart, as a part of the trace's; of lengths, and of tasks at a time: how far typically"""
    bound: float
    """most that a faithful replay is"""

    @property
    def matches(self) -> bool:
        """Whether they are no farther apart than the bound."""
        return abs(self.apart) <= self.bound

    def row(self) -> tuple[str, str, str, str, str]:
        """Return what is compared, the trace's value, the replay's, how far they are apart, and the bound."""
        before, after = (units.quantity(value, self.unit) for value in (self.trace, self.replay))
        return self.what, before, after, units.percent(self.apart), units.part(self.bound)

    def __str__(self) -> str:
        """Return the row as a text."""
        what, before, after, apart, bound = self.row()
        return f"{what} {before} -> {after} ({apart}; at most {bound})"


class Fidelity(Model):
    """How a replay compares with its trace: the table `fidelity` of a recorded workload."""

    machine: str = ""
    """on which it was replayed"""
    kernel: str = ""
    workload: str = ""
    """hash of the workload that was replayed: another one has not been compared"""
    compared: list[Compared] = []
    """none: it was not replayed"""

    def mismatch(self, workload: str) -> str:
        """Return why the replay does not match, in a line; empty if it does.

        Args:
            workload: hash of the workload as it is now.
        """
        if not self.compared:
            return "it was never compared with its trace: record it again without --no-check"
        if self.workload != workload:
            return "the file was changed after it was compared with its trace: record it again"
        return ", ".join(str(one) for one in self.compared if not one.matches)

    def distance(self) -> tuple[int, float]:
        """Return how far the replay is from its trace: how much does not match, and the largest multiple of a bound."""
        faults = sum(not one.matches for one in self.compared)
        return faults, max((abs(one.apart) / one.bound for one in self.compared), default=0.0)

    def summary(self) -> str:
        """Return all quantities in a line; empty if there are none."""
        found = ", ".join(f"{one.what} {units.percent(one.apart)}" for one in self.compared)
        return f"{found} (on {self.machine}, Linux {self.kernel})" if found else ""


def compare(recorded: Load, replayed: Load) -> list[Compared]:
    """Compare a replay with its trace.

    Args:
        recorded: what the trace shows.
        replayed: what a trace of the replay shows of the same groups.
    """
    few = float(FEW * recorded.cpus)

    def rate(what: str, unit: str, of: Callable[[Load], float], leeway: float) -> Compared:
        before, after = of(recorded), of(replayed)
        base = before or 1.0
        return Compared(
            what=what,
            unit=unit,
            trace=before,
            replay=after,
            apart=(after - before) / base,
            bound=RATES + leeway / base,
        )

    return [
        rate("utilisation", units.SHARE, lambda load: load.utilisation, POINTS),
        rate("switches", "/s", lambda load: load.switches, few),
        rate("wakeups", "/s", lambda load: load.wakeups, few),
        *_lengths("run length, median", recorded.runs_ns, replayed.runs_ns),
        *_lengths("sleep length, median", recorded.sleeps_ns, replayed.sleeps_ns),
        _concurrency(recorded, replayed),
    ]


def _lengths(what: str, before: Ints, after: Ints) -> list[Compared]:
    """Compare distributions of lengths: their medians are shown, and how far quantiles are apart on average."""
    if len(before) < _FEWEST:
        return []
    typical = 1e9  # none is no length at all
    if len(after):
        logs = [np.log(np.quantile(np.maximum(values, _LEAST_NS), _POINTS)) for values in (before, after)]
        typical = float(np.expm1(np.abs(logs[0] - logs[1]).mean()))
    medians = [float(np.median(values)) if len(values) else 0.0 for values in (before, after)]
    return [Compared(what=what, unit="ns", trace=medians[0], replay=medians[1], apart=typical, bound=LENGTHS)]


def _concurrency(recorded: Load, replayed: Load) -> Compared:
    """Compare how many tasks run or wait: by their distribution over time, as a replay may begin elsewhere."""
    before, after = (np.quantile(load.concurrency, _POINTS) for load in (recorded, replayed))
    means = [float(load.concurrency.mean()) for load in (recorded, replayed)]
    # Less than a task on average is no crowd: differences of a fraction of one are not magnified.
    apart = float(np.abs(before - after).mean()) / max(means[0], 1.0)
    return Compared(what="tasks at a time", unit="", trace=means[0], replay=means[1], apart=apart, bound=CONCURRENCY)


def other_size(recorded: Load, cpus: int, name: str) -> str:
    """Return what to add to the faults if the machine has another number of CPUs than the trace; else nothing.

    Args:
        recorded: what the trace shows.
        cpus: of the machine.
        name: of the machine.
    """
    if cpus == recorded.cpus:
        return ""
    has, wanted = units.counted(cpus, "CPU"), units.counted(recorded.cpus, "CPU")
    return f"; {name} has {has} and the trace {wanted}: leave --check out, or name a machine of {wanted}"
