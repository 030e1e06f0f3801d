"""Light work in the background: it costs tasks in the foreground no more than under EEVDF."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from heddle_lab.job import CgroupSet, Step
from tests.conftest import Boot, Record
from tests.vm.beside import Part, ends, killed, load, pause, under_both
from tests.vm.machines import slow

pytestmark = pytest.mark.vm

BAR = 1.2
"""of EEVDF's 99th percentile"""

MISSED_BAR = 2
"""deadlines more than EEVDF's"""

CPUS = 4

SPEED = 25

TIMES = 3
"""how often each load is repeated: where tasks are placed at the start is chance"""

QUIET_NS = 50_000
"""what a wakeup takes on CPUs this slow where nothing is in its way: percentiles below differ by a fifth from one boot
to the next, and test_wakeq.py bounds what the way costs"""


@dataclass(frozen=True)
class Hogs:
    """Background hogs, light by their nice level or by the weight of their group."""

    per_cpu: int
    nice: int = 0
    weight: int | None = None

    def __str__(self) -> str:
        light = f"nice {self.nice}" if self.weight is None else f"weight {self.weight}"
        return f"{self.per_cpu} per CPU of {light}"

    def steps(self) -> list[Step]:
        argv = ["spin", "--threads", self.per_cpu * CPUS, "--nice", self.nice, "--for-ms", 60_000]
        if self.weight is None:
            return [load("hogs", *argv, background=True)]
        weight = CgroupSet(cgroup="light", file="cpu.weight", value=str(self.weight))
        return [Step(name="weight", action=weight), load("hogs", *argv, cgroup="light", background=True)]


HOGS = [Hogs(2, nice=19), Hogs(4, nice=10), Hogs(1, nice=5), Hogs(2, weight=1), Hogs(1, weight=20)]

FOREGROUND = {
    "timers": [
        "--tasks",
        CPUS,
        "--period-us",
        6_000,
        "--stagger-us",
        1_500,
        "--jitter-us",
        1_000,
        "--work-insns",
        1_000,
    ],
    "audio": ["--stages", 3, "--period-us", 3_000, "--work-insns", 2_500],
    "frames": ["--period-us", 16_667, "--work-insns", 1_000_000],
}
"""a stage of the audio takes 10 us and a frame 4 ms at the speed of the machine; timers do not meet one another, since
which of them share a CPU is chance"""

LENGTH_MS = {"timers": 1_600, "audio": 3_200, "frames": 1_600}
"""so that what is judged by a 99th percentile is activated a thousand times"""


def steps(hogs: Hogs, names: Sequence[str]) -> list[Step]:
    """Tasks of the foreground at once, beside hogs; where those are a group, they are another."""
    group = None if hogs.weight is None else "front"
    tasks = [
        load(name, "periodic", *FOREGROUND[name], "--for-ms", LENGTH_MS[name], cgroup=group, background=True)
        for name in names
    ]
    background = hogs.steps()
    return [*background, pause("settle", 60), *tasks, *ends(*tasks), *killed(background[-1])]


def repeated(parts: Mapping[str, list[Step]]) -> dict[str, list[Step]]:
    """Each part several times, under names with the number of the turn."""
    return {f"{name} {turn}": steps for name, steps in parts.items() for turn in range(TIMES)}


def means(said: Mapping[str, tuple[Part, Part]], number: Callable[[Part], int]) -> dict[str, list[float]]:
    """A number under scx_heddle and under EEVDF, averaged over the turns of each part."""
    turns: dict[str, list[tuple[Part, Part]]] = {}
    for name, sides in said.items():
        turns.setdefault(name.rpartition(" ")[0], []).append(sides)
    return {name: [mean(map(number, side)) for side in zip(*sides, strict=True)] for name, sides in turns.items()}


def late(p99: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The parts whose wakeups are late: their 99th percentiles under scx_heddle and under EEVDF, ns."""
    return {name: [ours, eevdf] for name, (ours, eevdf) in p99.items() if ours > BAR * max(eevdf, QUIET_NS)}


def test_light_hogs_do_not_delay_timers(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Kind: light hogs that are owed CPU time keep it from tasks that wake up."""
    parts = {str(hogs): steps(hogs, ["timers"]) for hogs in HOGS}
    said = under_both(boot, repeated(parts), slow(tmp_path, f"cores = {CPUS}", SPEED))
    p99 = means(said, lambda side: side.report("timers")["late_ns"]["p99"])
    record_property(f"p99 of wakeups beside light hogs, and EEVDF's, on {boot.kernel}, ns", p99)
    assert not late(p99)


def sleepers(name: str, per_cpu: int, period_us: int, run_us: int, **fields: Any) -> Step:
    """Light tasks that sleep most of the time, each of them pinned to a CPU."""
    argv = ["--tasks", per_cpu * CPUS, "--period-us", period_us, "--run-us", run_us, "--cpus", f"0-{CPUS - 1}", "--pin"]
    return load(name, "periodic", *argv, "--for-ms", 60_000, background=True, **fields)


PAIRS = ["pingpong", "--pairs", 2 * CPUS, "--count", 1_000_000, "--work-insns", 800 * 10 * SPEED]
"""each of a pair computes for 0.8 ms at a time"""

MIXED: dict[str, list[Step]] = {
    "hogs and batch": [*Hogs(1, nice=19).steps(), sleepers("batch", 1, 1_500, 150, nice=19, policy="batch")],
    "hogs and idle": [*Hogs(1, nice=19).steps(), sleepers("idle", 1, 1_500, 150, policy="idle")],
    "hogs and light": [*Hogs(1, nice=5).steps(), sleepers("light", 2, 5_000, 1_200, nice=10)],
    "pairs": [load("pairs", *PAIRS, nice=19, background=True)],
}


def test_light_tasks_that_sleep_do_not_delay_timers(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Kind: light tasks that sleep, pinned ones too, keep heavier wakees from preempting them or light hogs."""
    timers = load("timers", "periodic", *FOREGROUND["timers"], "--for-ms", LENGTH_MS["timers"])
    parts = {
        name: [*background, pause("settle", 60), timers, *killed(*background)] for name, background in MIXED.items()
    }
    said = under_both(boot, repeated(parts), slow(tmp_path, f"cores = {CPUS}", SPEED))
    p99 = means(said, lambda side: side.report("timers")["late_ns"]["p99"])
    record_property(f"p99 of wakeups beside light sleepers, and EEVDF's, on {boot.kernel}, ns", p99)
    assert not late(p99)


def test_light_hogs_do_not_delay_audio_and_frames(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Kind: as above; a chain of tasks waits at each of its stages, and a frame misses its deadline."""
    parts = {str(hogs): steps(hogs, ["audio", "frames"]) for hogs in HOGS[::2]}
    said = under_both(boot, repeated(parts), slow(tmp_path, f"cores = {CPUS}", SPEED))
    p99 = means(said, lambda side: side.report("audio")["done_ns"]["p99"])
    chains = means(said, lambda side: side.report("audio")["missed"])
    frames = means(said, lambda side: side.report("frames")["missed"])
    record_property(f"p99 of a chain beside light hogs, and EEVDF's, on {boot.kernel}, ns", p99)
    record_property(f"deadlines missed beside light hogs, and under EEVDF, on {boot.kernel}", (chains, frames))
    assert all(ours <= BAR * eevdf for ours, eevdf in p99.values()), p99
    missed = [*chains.values(), *frames.values()]
    assert all(ours <= eevdf + MISSED_BAR for ours, eevdf in missed), (chains, frames)
