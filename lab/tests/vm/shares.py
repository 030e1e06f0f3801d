"""Contests of groups for CPU time, and how far each got from its share by the kernel's own accounts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from heddle_lab.job import CgroupSet, Read, Sleep, Step, WaitStep
from heddle_lab.results import Results
from tests.conftest import Record

HEDDLE = "scx_heddle"
CGROUPS = "/sys/fs/cgroup"
MS = 1_000_000

TICK_MS = 4
"""the kernels have HZ=250"""

WARMUP_MS = 1000
WINDOW_MS = 1000
WINDOWS = 2

SHARE_ERROR = 0.01
"""of the time of the CPUs, over all windows of a contest"""

WINDOW_ERROR = 5 * TICK_MS / WINDOW_MS
"""the same in one window: each CPU may owe a light thread four slices (LAG_LIGHTEST_SLICES, lag.h) of a tick each, and
relieve one of another (relief.bpf.h)"""

HALF = {"a": 0.5, "b": 0.5}


def usage_usec(results: Results, step: str) -> int:
    """CPU time of a group as a step read it from its cpu.stat, by the kernel's account."""
    text = results.step(step).stdout
    found = re.search(r"^usage_usec (\d+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1])


@dataclass(frozen=True)
class Hogs:
    """Threads that want all they can get, in a group."""

    group: str
    threads: int = 1
    cpus: str | None = None


@dataclass(frozen=True)
class Contest:
    """Loads in groups, and what share of the CPU time each group is to get."""

    name: str
    loads: list[Hogs]
    ideal: Mapping[str, float]
    weights: Mapping[str, int] = field(default_factory=dict)
    cpus: str = "1-2"
    meanwhile: str = ""
    """a shell's script that runs beside the loads until they have settled"""
    warmup_ms: int = WARMUP_MS
    windows: int = WINDOWS
    window_ms: int = WINDOW_MS

    def path(self, group: str) -> str:
        return f"{self.name}/{group}"

    def set(self, group: str, file: str, value: str, when: str = "") -> Step:
        action = CgroupSet(cgroup=self.path(group), file=file, value=value)
        return Step(name=f"{self.name}: {group} {file} {value}{when}", action=action)

    def read(self, window: int) -> Iterable[Step]:
        for group in self.ideal:
            action = Read(path=f"{CGROUPS}/{self.path(group)}/cpu.stat")
            yield Step(name=f"{self.name}: {group} after {window}", action=action)

    def window(self, number: int) -> list[Step]:
        sleep = Step(name=f"{self.name}: window {number}", action=Sleep(ns=self.window_ms * MS))
        return [sleep, *self.read(number)]

    def steps(self) -> list[Step]:
        """Start the loads, let them settle, read the groups' CPU times at the ends of the windows."""
        for_ms = self.warmup_ms + self.windows * self.window_ms + 200
        steps = [self.set(group, "cpu.weight", str(weight)) for group, weight in self.weights.items()]
        for number, load in enumerate(self.loads):
            argv = ["heddle-load", "spin", "--threads", str(load.threads), "--for-ms", str(for_ms)]
            argv += ["--cpus", load.cpus or self.cpus]
            name = f"{self.name}: load {number}"
            steps.append(Step(name=name, argv=argv, cgroup=self.path(load.group), background=True))
        name = f"{self.name}: meanwhile"
        if self.meanwhile:
            steps.append(Step(name=name, argv=["sh", "-c", self.meanwhile], cpus="0", background=True))
        steps.append(Step(name=f"{self.name}: settle", action=Sleep(ns=self.warmup_ms * MS)))
        if self.meanwhile:
            steps.append(Step(name=f"wait for {name}", action=WaitStep(step=name)))
        steps += self.read(0)
        for number in range(1, self.windows + 1):
            steps += self.window(number)
        for number in range(len(self.loads)):
            name = f"{self.name}: load {number}"
            steps.append(Step(name=f"wait for {name}", action=WaitStep(step=name)))
        return steps

    def errors(self, results: Results, start: int, end: int) -> dict[str, float]:
        """Return how far each group is from its share between the ends of two windows."""
        before, after = (
            {group: usage_usec(results, f"{self.name}: {group} after {when}") for group in self.ideal}
            for when in (start, end)
        )
        got = {group: after[group] - before[group] for group in self.ideal}
        total = sum(got.values())
        return {group: got[group] / total - ideal for group, ideal in self.ideal.items()}

    def window_errors(self, results: Results) -> dict[str, float]:
        """Return how far each group is from its share in the window where it is furthest."""
        each = [self.errors(results, end - 1, end) for end in range(1, self.windows + 1)]
        return {group: max((errors[group] for errors in each), key=abs) for group in self.ideal}


def judge(
    results: Results,
    contests: Iterable[Contest],
    record: Record,
    bound: float = SHARE_ERROR,
    window_bound: float = WINDOW_ERROR,
) -> None:
    """Compare all contests with their ideals; record the largest error of each, name every group that is off.

    Args:
        bound: of the errors over all windows of a contest.
        window_bound: of those in each, unless `bound` is more.
    """
    [ready] = results.of("ready")
    contests = list(contests)
    overall = {contest.name: contest.errors(results, 0, contest.windows) for contest in contests}
    windows = {contest.name: contest.window_errors(results) for contest in contests}
    for what, errors, most in (("share", overall, bound), ("share in a window", windows, max(bound, window_bound))):
        largest = {name: max(map(abs, groups.values())) for name, groups in errors.items()}
        record(f"largest error of a {what} on {ready['kernel']}", {name: round(e, 4) for name, e in largest.items()})
        off = {name: errors[name] for name, error in largest.items() if error > most}
        assert not off, f"off their ideals by more than {most}: {what}: {off}"
