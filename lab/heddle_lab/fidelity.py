"""Is a replay like the trace that it was made of?"""

from pathlib import Path

import numpy as np
from scipy import stats

from heddle_lab import recording, scheduler, tracing, units, variant, vm
from heddle_lab import workload as workload_files
from heddle_lab.cell import Cell
from heddle_lab.kernels import Kernel
from heddle_lab.machine import Machine
from heddle_lab.recording import Load

POINTS = 0.10
"""most that the utilisation of a faithful replay differs from the trace's, as a part of all CPU time"""

RATES = 0.25
"""most that its switches and wakeups a second differ, as a part of the trace's"""

FEW = 50
"""switches and wakeups a second per CPU that they may differ by beyond that: at 10 us each, 0.05 % of its time"""

START = 10
"""switches and wakeups that each thread of the replay may have besides, until it has begun"""


def replay(recorded: Load, file: Path, box: Machine, kernel: Kernel) -> Load:
    """Replay a workload under the kernel's own scheduler, traced, and return what its trace shows.

    Raises:
        HeddleError: the replay failed, or its trace lacks events.
    """
    load = workload_files.load(str(file))
    cell = Cell(
        machine=box,
        kernel=kernel,
        contestant=variant.of_scheduler(scheduler.EEVDF),
        workload=load,
        params=load.parameters({}),
        seed=1,
        traced=True,
    )
    results = vm.run(cell.guest()).check()
    events = tracing.events_of(results, cell.measured_step)
    return recording.of_events(events, only=[group.name for group in recorded.groups])


def table(recorded: Load, replayed: Load) -> list[tuple[str, str, str, str]]:
    """Return rows of what is compared, the trace's value, the replay's, and how far they are apart."""
    distance = float(stats.ks_2samp(recorded.runs_ns, replayed.runs_ns).statistic)

    def row(name: str, before: float, after: float, unit: str) -> tuple[str, str, str, str]:
        apart = units.percent(after / before - 1) if before else "–"
        if unit == units.SHARE:  # as its bound
            apart = units.difference(after - before, unit)
        return name, units.quantity(before, unit), units.quantity(after, unit), apart

    before, after = (float(np.median(load.runs_ns)) for load in (recorded, replayed))
    return [
        row("utilisation", recorded.utilisation, replayed.utilisation, units.SHARE),
        row("switches", recorded.switches, replayed.switches, "/s"),
        row("wakeups", recorded.wakeups, replayed.wakeups, "/s"),
        row("run length, median", before, after, "ns"),
        ("run lengths, Kolmogorov-Smirnov distance", "", "", f"{distance:.3f}"),
    ]


def faults(recorded: Load, replayed: Load) -> list[str]:
    """Return a text for each quantity in which the replay is too far from the trace; none if it is faithful."""
    found = []
    apart = replayed.utilisation - recorded.utilisation
    if abs(apart) > POINTS:
        before, after = (units.quantity(load.utilisation, units.SHARE) for load in (recorded, replayed))
        difference = units.difference(apart, units.SHARE)
        found.append(f"utilisation {before} -> {after} ({difference}; at most {POINTS * 100:.0f} points)")
    for name in ("switches", "wakeups"):
        was, is_now = float(getattr(recorded, name)), float(getattr(replayed, name))
        few, begun = FEW * recorded.cpus, START * recorded.threads / (replayed.duration_ns / 1e9)
        if not (1 - RATES) * was - few <= is_now <= (1 + RATES) * was + few + begun:
            change = units.percent(is_now / was - 1) if was else "from none"
            texts = units.quantity(was, "/s"), units.quantity(is_now, "/s")
            found.append(f"{name} {texts[0]} -> {texts[1]} ({change}; at most {RATES * 100:.0f} %)")
    return found


def mismatch(recorded: Load, box: Machine) -> str:
    """Return what to add to the faults if the machine has another number of CPUs than the trace; else nothing."""
    if box.cpus == recorded.cpus:
        return ""
    has, wanted = units.counted(box.cpus, "CPU"), units.counted(recorded.cpus, "CPU")
    return f"; {box.name} has {has} and the trace {wanted}: take a machine of {wanted} (`heddle machines` lists them)"
