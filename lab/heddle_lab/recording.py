"""A recorded load: from a trace of a real machine to a workload that `heddle-replay` plays.

Each task of the trace is a thread of the replay. It runs as long as the task did, and where in a run the task woke
another one, it wakes that one's thread. A sleep that a task ended lasts until that task's thread ends it, whenever
that is: so loops that are closed stay closed. All other sleeps end by time. Most of them last as long as they did; of a
task whose sleeps end more regularly than that, such as a period, they end when they did. Tasks that begin within the
trace begin when their parents wake them, and tasks that end, end.

Not kept: what the work does to caches and memory; affinity, and the weights of cgroups, which sched events do not show;
which of several tasks took a lock, where the order of wakeups would be another one.

A run of a nanosecond is an instruction: a machine whose CPUs execute 100 in 100 ns runs as long as was recorded.
"""

import base64
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import zstandard
from numpy.typing import NDArray

from heddle_lab import script, tasks, tomlfile, tracefile, units
from heddle_lab.errors import HeddleError, printable
from heddle_lab.measures import perfscript, timeline
from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.timeline import IDLE, Timeline
from heddle_lab.selection import EVERYTHING, Selection
from heddle_lab.tasks import NOBODY, Task
from heddle_lab.tracefile import Trace

Floats = NDArray[np.float64]

_PART_NS = 10_000_000
"""over which the number of tasks is averaged"""
_PARTS = (20, 10_000)
"""fewest and most of a trace"""

_NUMBER = re.compile(r"[\d/:._#-]+\Z")

_KERNEL = re.compile(
    r"^(kworker|ksoftirqd|migration|rcu|kswapd|kcompactd|cpuhp|idle_inject|irq|watchdog|khugepaged|kdamond)"
)
"""threads of the kernel: the replay's kernel has its own"""


@dataclass(frozen=True)
class Span:
    """A part of a trace, ns since its begin."""

    from_ns: int = 0
    for_ns: int | None = None
    """none: to its end"""


WHOLE = Span()


@dataclass(frozen=True)
class Group:
    """Tasks of one name, but for a number at its end."""

    name: str
    tasks: int
    parts: int
    """how many of them begin or end within the trace"""
    runs_ns: Ints
    """CPU time between two sleeps"""
    sleeps_ns: Ints
    """none: its tasks never sleep"""
    woken: float
    """part of the sleeps that other tasks end"""
    spent: float
    """CPU time over that of all CPUs"""

    def row(self) -> tuple[str, ...]:
        """Return what a listing says: name, tasks, those that begin or end, runs, CPU time, how it is woken."""
        how = f"{self.woken:.0%}" if len(self.sleeps_ns) else "never sleep"
        counts = (str(number) for number in (self.tasks, self.parts, len(self.runs_ns)))
        return printable(self.name), *counts, units.quantity(self.spent, units.SHARE), how


HEADINGS = ("group", "tasks", "begin or end", "runs", "CPU time", "woken by tasks")
"""of `Group.row`"""


@dataclass(frozen=True)
class Load:
    """What a trace shows of a load."""

    cpus: int
    duration_ns: int
    groups: list[Group]
    tasks: list[Task]
    utilisation: float
    """CPU time of the tasks over that of all CPUs"""
    switches: float
    """to the tasks, a second"""
    wakeups: float
    """of the tasks, a second"""
    concurrency: Floats
    """how many of the tasks ran or waited, in each of equal parts of the time"""
    left_out: float
    """CPU time of all other tasks over that of all CPUs"""
    unread: int = 0
    """lines of sched events that were not understood"""
    first_unread: str = ""

    @property
    def runs_ns(self) -> Ints:
        """All run lengths."""
        return _together([group.runs_ns for group in self.groups])

    @property
    def sleeps_ns(self) -> Ints:
        """All lengths of sleeps."""
        return _together([group.sleeps_ns for group in self.groups])


def _together(columns: list[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *columns])


def read(text: str, where: str) -> Load:
    """Return what the text of a trace shows of all its tasks; see `of_trace` and `tracefile.of_text`."""
    return of_trace(tracefile.of_text(text, where), where)


def of_trace(trace: Trace, where: str, selection: Selection = EVERYTHING, span: Span = WHOLE) -> Load:
    """Return what a trace shows.

    Args:
        trace: its events.
        where: the file's name, for errors.
        selection: which tasks are kept, beside those of the kernel, which are not.
        span: which part of it.

    Raises:
        HeddleError: it has no sched_switch, no wakeups, none that is understood, or no task but the kernel's; it ends
            before the part begins; or the selection keeps none.
    """
    _refuse_without(trace, {"sched_switch": Kind.SWITCH}, where, _GIVE)
    _refuse_without(trace, _WAKEUPS, where, "without them it is not known when a task waits")
    selection.check(where)
    # The highest number says how many CPUs there are; the time of those that show nothing is of no use here.
    line = timeline.build(trace.events, silent=False)
    begin = line.start_ns + span.from_ns
    if begin >= line.end_ns and span.from_ns:
        raise HeddleError(f"{where}: it ends after {line.duration_ns / 1e6:.6g} ms: choose an earlier --from-ms")
    part = timeline.window(line, begin, line.end_ns if span.for_ns is None else begin + span.for_ns)
    found = of_timeline(part, trace.events, lambda pid, comm: _is_kept(pid, comm, selection))
    if not found.groups:
        names = {group_name(comm) for pid, comm in trace.events.comms.items() if pid != IDLE}
        if users := [name for name in names if not _KERNEL.match(name)]:
            selection.refuse_nothing(where, users)
        raise HeddleError(f"{where}: only threads of the kernel run: record while the load runs")
    return replace(found, unread=len(trace.unread), first_unread=trace.unread[0] if trace.unread else "")


def _is_kept(pid: int, comm: str, selection: Selection) -> bool:
    name = group_name(comm)
    return not _KERNEL.match(name) and selection.keeps(pid, comm, name)


_GIVE = "record sched_switch and sched_waking, by `perf sched record` or by `trace-cmd record`"

_WAKEUPS = {"sched_wakeup": Kind.WAKEUP, "sched_waking": Kind.WAKING, "sched_wakeup_new": Kind.WAKEUP_NEW}


def _refuse_without(trace: Trace, kinds: dict[str, Kind], where: str, why: str) -> None:
    """Raise an error if no event of some kinds was understood; says what was there instead."""
    if len(trace.events.where(*kinds.values())):
        return
    lines = [line.strip() for line in trace.unread if any(f"{name}:" in line for name in kinds)]
    if lines:
        count = units.counted(len(lines), "line")
        raise HeddleError(f"{where}: {count} not understood, first: {lines[0]!r}: {_GIVE}")
    raise HeddleError(f"{where}: no {next(iter(kinds))} events: {why}")


def of_timeline(line: Timeline, events: Events, keeps: Callable[[int, str], bool]) -> Load:
    """Return what a timeline shows.

    Args:
        line: the timeline.
        events: what it was made of: wakeups, births and deaths.
        keeps: tells of a pid and a name whether the load has that task.
    """
    found = tasks.of(line, events, keeps)
    seconds = max(line.duration_ns, 1) / 1e9
    cpu_ns = max(line.cpus * line.duration_ns, 1)
    kept = np.array([task.pid for task in found], dtype=np.int64)
    all_runs = line.tasks()
    ran, others = (all_runs.take(np.isin(all_runs.pid, kept, invert=not mine)) for mine in (True, False))
    waited = line.waits.take(np.isin(line.waits.pid, kept))
    spent, spent_by_others = (int((runs.end_ns - runs.start_ns).sum()) for runs in (ran, others))
    return Load(
        cpus=line.cpus,
        duration_ns=line.duration_ns,
        groups=_groups(found, _partial(events, line), cpu_ns),
        tasks=found,
        utilisation=spent / cpu_ns,
        switches=len(ran) / seconds,
        wakeups=_count_wakeups(events, line, kept) / seconds,
        concurrency=_at_a_time(
            np.concatenate([ran.start_ns, waited.start_ns]) - line.start_ns,
            np.concatenate([ran.end_ns, waited.end_ns]) - line.start_ns,
            line.duration_ns,
        ),
        left_out=spent_by_others / cpu_ns,
    )


def _partial(events: Events, line: Timeline) -> set[int]:
    """Return the pids of the tasks that begin or end within a timeline."""
    at = events.where(Kind.WAKEUP_NEW, Kind.FORK, Kind.EXIT)
    at = at[(events.time_ns[at] >= line.start_ns) & (events.time_ns[at] <= line.end_ns)]
    dead = line.runs.pid[line.runs.end == timeline.End.DEAD]
    return {*events.pid[at].tolist(), *dead.tolist()}


def _count_wakeups(events: Events, line: Timeline, pids: Ints) -> int:
    rows = events.where(Kind.WAKING if len(events.where(Kind.WAKING)) else Kind.WAKEUP)
    times = events.time_ns[rows]
    within = (times >= line.start_ns) & (times <= line.end_ns)
    return int(np.count_nonzero(within & np.isin(events.pid[rows], pids)))


def _groups(found: list[Task], partial: set[int], cpu_ns: int) -> list[Group]:
    """Return the groups by name, those whose tasks never sleep apart.

    Args:
        found: all tasks.
        partial: pids of those that begin or end within the trace.
        cpu_ns: time of all CPUs.
    """
    members: dict[tuple[str, bool], list[Task]] = defaultdict(list)
    for task in found:
        members[group_name(task.comm), len(task.asleep_ns) == 0].append(task)
    groups = []
    for (name, _), mine in sorted(members.items()):
        wakers = _together([task.wakers for task in mine])
        groups.append(
            Group(
                name=name,
                tasks=len(mine),
                parts=sum(task.pid in partial for task in mine),
                runs_ns=_together([task.runs_ns for task in mine]),
                sleeps_ns=_together([task.sleeps_ns for task in mine]),
                woken=float(np.count_nonzero(wakers != NOBODY)) / max(len(wakers), 1),
                spent=sum(task.cpu_ns for task in mine) / cpu_ns,
            )
        )
    return groups


def _at_a_time(begins: Ints, ends: Ints, duration_ns: int) -> Floats:
    """Return how many intervals there are at a time, averaged over each of equal parts of the time."""
    parts = int(np.clip(duration_ns // _PART_NS, *_PARTS))
    edges = np.linspace(0, max(duration_ns, 1), parts + 1)

    def since(points: Ints) -> Floats:
        """Return for each edge the sum of the times since the points before it."""
        ordered = np.sort(points)
        before = np.searchsorted(ordered, edges)
        sums: Floats = before * edges - np.concatenate([[0], np.cumsum(ordered)])[before]
        return sums

    return np.diff(since(begins) - since(ends)) / np.diff(edges)


def group_name(comm: str) -> str:
    """Return a task's name without its number; bytes that are no UTF-8 are spelt out in hex."""
    name = perfscript.raw(comm).decode("utf-8", "backslashreplace")
    return _NUMBER.sub("", name) or name


def workload(found: Load, name: str, source: str, stretch: float = 1.0) -> str:
    """Return the workload's TOML file.

    Args:
        found: the load.
        name: of the workload.
        source: where the trace is from.
        stretch: how many times slower than it was it is played.
    """
    names = {group.name for group in found.groups}
    load = f"{units.counted(len(found.tasks), 'task')} in {units.counted(len(names), 'group')}"
    cpus = units.counted(found.cpus, "CPU")
    content = zstandard.ZstdCompressor(level=19).compress(script.encode(found.tasks, found.duration_ns))
    return _TEMPLATE.format(
        name=tomlfile.string(name),
        summary=tomlfile.string(f"{load}, recorded for {found.duration_ns / 1e9:.3g} s on {cpus}"),
        source=tomlfile.string(source),
        trace_cpus=found.cpus,
        stretch=float(stretch),
        script=base64.b64encode(content).decode(),
        fidelity=_FIDELITY,
    )


_TEMPLATE = """name = {name}
summary = {summary}
source = {source}
programs = ["heddle-replay"]

[params.load]
default = 1.0
unit = "times the recorded load"
summary = "how much of it there is for each CPU"

[params.trace_cpus]
default = {trace_cpus}
unit = "CPUs"
summary = "of the recorded machine: one of twice as many is given the load twice"

[params.stretch]
default = {stretch}
unit = "times as long"
summary = "how slow it is played: the kernel of a modelled machine takes longer than that of the recorded one"

[[steps]]
name = "replay"
argv = [
  "heddle-replay", "/heddle/replay",
  "--copies", "{{{{ load * cpus / trace_cpus }}}}", "--stretch", "{{{{ stretch }}}}",
]
timeout_ns = 600000000000

[[metrics]]
name = "throughput"
step = "replay"
unit = "runs/s"
better = "higher"
primary = true
value = "throughput"

[[metrics]]
name = "wakeup_latency_ns.p50"
step = "replay"
unit = "ns"
better = "lower"
value = "wakeup_latency_ns.p50"
samples = "wakeup_latency_ns.count"
when = "wakeup_latency_ns"

[[metrics]]
name = "wakeup_latency_ns.p99"
step = "replay"
unit = "ns"
better = "lower"
value = "wakeup_latency_ns.p99"
samples = "wakeup_latency_ns.count"
when = "wakeup_latency_ns"

[contents]
"/heddle/replay" = "{script}"
{fidelity}"""

_FIDELITY = "\n[fidelity]\n"
"""begins the last table of the file"""


def with_fidelity(text: str, found: dict[str, object]) -> str:
    """Return a workload's file with another table of how its replay compares with the trace.

    Args:
        text: of the file.
        found: what the table says: texts, numbers, and lists of such tables.
    """
    plain = {key: value for key, value in found.items() if not isinstance(value, list)}
    tables = [(key, row) for key, rows in found.items() if isinstance(rows, list) for row in rows]
    lines = [_FIDELITY, *_keys(plain)]
    for key, row in tables:
        lines += [f"\n[[fidelity.{key}]]\n", *_keys(row)]
    return text[: text.rindex(_FIDELITY)] + "".join(lines)


def _keys(row: dict[str, object]) -> list[str]:
    return [
        f"{key} = {tomlfile.string(value) if isinstance(value, str) else repr(value)}\n" for key, value in row.items()
    ]
