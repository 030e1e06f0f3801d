"""A recorded load: from a trace of a real machine to a workload that `heddle-load replay` plays.

Tasks of one name (but for a number at its end) are a group. Of each group the file keeps how long its tasks run
between two sleeps and how long they sleep (quantiles), which part of the sleeps other tasks end, and how often a run
wakes tasks of each group. Orders beyond that are not kept: which run follows which, locks, what the work does to
caches, affinity, cgroups. A wakeup that an interrupt does while a task runs counts as that task's.

Run lengths become instructions at one a nanosecond: a machine whose CPUs execute 100 in 100 ns runs as long as was
recorded.
"""

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from heddle_lab import scheduler, tracing, units, vm
from heddle_lab import workload as workload_files
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.kernels import Kernel
from heddle_lab.machine import Machine
from heddle_lab.measures import ftrace, perfscript, timeline
from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.timeline import IDLE, Cause, End, Timeline

_POINTS = 41
"""quantiles that are kept of a distribution"""

_NUMBER = re.compile(r"[\d/:._#-]+$")

_KERNEL = re.compile(
    r"^(kworker|ksoftirqd|migration|rcu|kswapd|kcompactd|cpuhp|idle_inject|irq|watchdog|khugepaged|kdamond)"
)
"""threads of the kernel: the replay's kernel has its own"""


@dataclass(frozen=True)
class Group:
    """Tasks that behave alike."""

    name: str
    tasks: int
    nice: int
    runs_ns: Ints
    """CPU time between two sleeps, ascending"""
    sleeps_ns: Ints
    woken: float
    wakes: list[float]


@dataclass(frozen=True)
class Load:
    """What a trace shows of a load."""

    cpus: int
    duration_ns: int
    groups: list[Group]
    utilisation: float
    """CPU time of the groups' tasks over that of all CPUs"""
    switches: float
    """to the groups' tasks, a second"""
    wakeups: float
    """of the groups' tasks, a second"""

    @property
    def runs_ns(self) -> Ints:
        """All run lengths."""
        return np.concatenate([group.runs_ns for group in self.groups])


def read(text: str, where: str) -> Load:
    """Read the text of `perf sched script`, `perf script`, `trace-cmd report` or tracefs's `trace`.

    Args:
        text: the events.
        where: the file's name, for errors.

    Raises:
        HeddleError: it has no sched_switch, no wakeups, or no task that runs and sleeps.
    """
    events = ftrace.parse(perfscript.to_ftrace(text))
    if not len(events.where(Kind.SWITCH)):
        raise HeddleError(
            f"{where}: no sched_switch events: give the text of `perf sched script` or `trace-cmd report`"
        )
    if not len(events.where(Kind.WAKING, Kind.WAKEUP, Kind.WAKEUP_NEW)):
        raise HeddleError(f"{where}: no sched_wakeup events: without them it is not known when a task waits")
    found = of_events(events)
    if not found.groups:
        raise HeddleError(f"{where}: no task sleeps and runs again: record for longer")
    return found


def of_events(events: Events, only: list[str] | None = None) -> Load:
    """Return what events show.

    Args:
        events: with switches and wakeups.
        only: keep the groups of these names alone; none: all but the kernel's threads.
    """
    line = timeline.build(events)
    runs, sleeps = _runs_and_sleeps(line)
    names = {pid: _group_name(line.comms.get(pid, "?")) for pid in runs}
    members: dict[str, list[int]] = defaultdict(list)
    for pid, name in names.items():
        if not _KERNEL.match(name) if only is None else name in only:
            members[name].append(pid)
    order = sorted(members)
    kept = {pid: order.index(names[pid]) for name in order for pid in members[name]}
    edges, by_tasks, woken = _wakeups(events, kept)
    groups = [
        Group(
            name=name,
            tasks=len(members[name]),
            nice=_nice(line, members[name]),
            runs_ns=np.sort(np.concatenate([runs[pid] for pid in members[name]])),
            sleeps_ns=np.sort(np.concatenate([sleeps[pid] for pid in members[name]])),
            woken=by_tasks[number] / max(woken[number], 1),
            wakes=[edges[number, other] / sum(len(runs[pid]) for pid in members[name]) for other in range(len(order))],
        )
        for number, name in enumerate(order)
    ]
    seconds = max(line.duration_ns, 1) / 1e9
    mine = line.runs.take(np.isin(line.runs.pid, list(kept)))
    return Load(
        cpus=line.cpus,
        duration_ns=line.duration_ns,
        groups=groups,
        utilisation=float((mine.end_ns - mine.start_ns).sum()) / max(line.cpus * line.duration_ns, 1),
        switches=len(mine) / seconds,
        wakeups=sum(woken.values()) / seconds,
    )


def _group_name(comm: str) -> str:
    return _NUMBER.sub("", comm) or comm


def _nice(line: Timeline, pids: list[int]) -> int:
    """Return the commonest nice level; priorities of real-time tasks are no nice levels and count as 0."""
    levels = Counter(line.prios.get(pid, 120) - 120 for pid in pids)
    level = levels.most_common(1)[0][0]
    return level if -20 <= level <= 19 else 0


def _runs_and_sleeps(line: Timeline) -> tuple[dict[int, Ints], dict[int, Ints]]:
    """Return, for each task that slept and ran again, its CPU time between sleeps and the lengths of its sleeps."""
    tasks = line.tasks()
    tasks = tasks.take(np.lexsort((tasks.start_ns, tasks.pid)))
    waits = line.waits.take(line.waits.cause == Cause.WOKEN)
    woken: dict[int, Ints] = {pid: waits.start_ns[waits.pid == pid] for pid in np.unique(waits.pid).tolist()}
    runs: dict[int, Ints] = {}
    sleeps: dict[int, Ints] = {}
    edges = np.flatnonzero(np.diff(tasks.pid, prepend=-1, append=-1))
    for first, beyond in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        pid = int(tasks.pid[first])
        length = tasks.end_ns[first:beyond] - tasks.start_ns[first:beyond]
        blocked = np.flatnonzero(tasks.end[first:beyond] == End.BLOCKED)
        blocked = blocked[blocked < beyond - first - 1]
        if not len(blocked):
            continue
        spent = np.diff(np.cumsum(length)[blocked], prepend=0)
        asleep, again = tasks.end_ns[first:beyond][blocked], tasks.start_ns[first:beyond][blocked + 1]
        times = woken.get(pid, np.empty(0, dtype=np.int64))
        place = np.searchsorted(times, asleep)
        # A wakeup at the very instant of the run leaves no wait.
        wake = np.append(times, np.iinfo(np.int64).max)[place]
        # CPUs' clocks are not that exactly one: a task may seem to run again before it slept.
        runs[pid], sleeps[pid] = spent, np.maximum(np.minimum(wake, again) - asleep, 0)
    return runs, sleeps


def _wakeups(events: Events, kept: dict[int, int]) -> tuple[Counter[tuple[int, int]], Counter[int], Counter[int]]:
    """Count wakeups: by waker's and woken's group, of each group by kept tasks, of each group by anyone."""
    kind = Kind.WAKING if len(events.where(Kind.WAKING)) else Kind.WAKEUP
    edges: Counter[tuple[int, int]] = Counter()
    by_tasks: Counter[int] = Counter()
    woken: Counter[int] = Counter()
    rows = events.where(kind)
    for waker, pid in zip(events.current[rows].tolist(), events.pid[rows].tolist(), strict=True):
        if pid not in kept:
            continue
        woken[kept[pid]] += 1
        if waker != IDLE and waker in kept and waker != pid:
            edges[kept[waker], kept[pid]] += 1
            by_tasks[kept[pid]] += 1
    return edges, by_tasks, woken


def workload(found: Load, name: str, source: str) -> str:
    """Return the workload's TOML file.

    Args:
        found: the load.
        name: of the workload.
        source: where the trace is from.
    """
    model = {
        "groups": [
            {
                "name": group.name,
                "tasks": group.tasks,
                "nice": group.nice,
                "runs_insns": _quantiles(group.runs_ns),
                "sleeps_ns": _quantiles(group.sleeps_ns),
                "woken": round(group.woken, 4),
                "wakes": [round(rate, 4) for rate in group.wakes],
            }
            for group in found.groups
        ]
    }
    text = json.dumps(model, separators=(",", ":"), ensure_ascii=True)
    tasks = sum(group.tasks for group in found.groups)
    seconds = found.duration_ns / 1e9
    summary = f"{tasks} tasks in {len(found.groups)} groups, recorded for {seconds:.3g} s on {found.cpus} CPUs"
    return _TEMPLATE.format(name=json.dumps(name), summary=json.dumps(summary), source=json.dumps(source), model=text)


_TEMPLATE = """name = {name}
summary = {summary}
source = {source}

[params.for_ms]
default = 500
unit = "ms"
summary = "how long the load is played"

[[steps]]
name = "replay"
argv = ["heddle-load", "replay", "--for-ms", "{{{{ for_ms }}}}", "--seed", "{{{{ seed }}}}"]
stdin = '''{{% raw %}}{model}{{% endraw %}}'''

[[metrics]]
name = "throughput"
step = "replay"
unit = "runs/s"
better = "higher"
value = "throughput"
"""


def _quantiles(ordered: Ints) -> list[int]:
    """Return quantiles at equal steps, the last one such that draws between the last two have the tail's mean.

    The maximum would not do: a single long sleep of a thousand would lengthen one draw in forty.
    """
    points = np.quantile(ordered, np.linspace(0, 1, _POINTS))
    tail = ordered[ordered >= points[-2]]
    points[-1] = 2 * tail.mean() - points[-2]
    return [int(value) for value in points]


def replay(recorded: Load, file: Path, box: Machine, kernel: Kernel) -> Load:
    """Replay a workload under the kernel's own scheduler, traced, and return what its trace shows.

    Raises:
        HeddleError: the replay failed, or its trace lacks events.
    """
    load = workload_files.load(str(file))
    cell = Cell(
        machine=box,
        kernel=kernel,
        scheduler=scheduler.parse(scheduler.EEVDF),
        workload=load,
        params=load.parameters({}),
        seed=1,
        traced=True,
    )
    results = vm.run(cell.guest()).check()
    events = tracing.events_of(results, cell.measured_step)
    return of_events(events, only=[group.name for group in recorded.groups])


def fidelity(recorded: Load, replayed: Load) -> list[tuple[str, str, str, str]]:
    """Return rows of what is compared, the trace's value, the replay's, and how far they are apart."""
    distance = float(stats.ks_2samp(recorded.runs_ns, replayed.runs_ns).statistic)

    def row(name: str, before: float, after: float, unit: str) -> tuple[str, str, str, str]:
        apart = units.percent(after / before - 1) if before else "–"
        return name, units.quantity(before, unit), units.quantity(after, unit), apart

    before, after = (float(np.median(load.runs_ns)) for load in (recorded, replayed))
    return [
        row("utilisation", recorded.utilisation, replayed.utilisation, units.SHARE),
        row("switches", recorded.switches, replayed.switches, "/s"),
        row("wakeups", recorded.wakeups, replayed.wakeups, "/s"),
        row("run length, median", before, after, "ns"),
        ("run lengths, Kolmogorov-Smirnov distance", "", "", f"{distance:.3f}"),
    ]
