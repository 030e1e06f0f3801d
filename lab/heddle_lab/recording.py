"""A recorded load: from a trace of a real machine to a workload that `heddle-load replay` plays.

Tasks of one name (but for a number at its end) are a group. Of each group the file keeps how long its tasks run
between two sleeps and how long they sleep (quantiles), which part of the sleeps other tasks end, and how often a run
wakes tasks of each group. Orders beyond that are not kept: which run follows which, locks, what the work does to
caches, affinity, cgroups. A wakeup that an interrupt does while a task runs counts as that task's.

A task counts for the time that it lives, from its birth to its death (`lives`). A life that goes through the whole
trace is played for as long as is wanted; all others are played at the times of the trace. Runs and sleeps that are
longer than a tenth of the trace are too few for a distribution. Such a run is a life by itself, in a group of tasks
that never sleep; such a sleep lies between two lives. A thread of the replay plays several lives that do not overlap:
forks and exits are not played. A task that never sleeps runs for as long as it lives, however much of the CPU it got.

Run lengths become instructions at one a nanosecond: a machine whose CPUs execute 100 in 100 ns runs as long as was
recorded.
"""

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from heddle_lab import lives, tomlfile, tracefile, units
from heddle_lab.errors import HeddleError, printable
from heddle_lab.lives import Life
from heddle_lab.measures import perfscript, timeline
from heddle_lab.measures.events import Events, Ints, Kind
from heddle_lab.measures.timeline import IDLE, Timeline
from heddle_lab.selection import EVERYTHING, Selection
from heddle_lab.tracefile import Trace

Floats = NDArray[np.float64]

_POINTS = 41
"""quantiles that are kept of a distribution"""

_WARM_UP_MS = 200
_FOR_MS = 500
"""how long a replay lasts in which all tasks live from begin to end"""

_BRIEF = 0.05
"""part of the load from which on the lives of its tasks matter"""

_PART_NS = 10_000_000
"""over which the number of tasks is averaged"""
_PARTS = (20, 10_000)
"""fewest and most of a trace"""

_PIECE_NS = 1_000_000
"""of the work of a task that never sleeps: what counts as a run of its replay"""

PARTS = (
    "Partial lives do not go through the whole trace: a task begins or ends within it, or runs or sleeps for more than "
    f"{lives.LONG:.0%} of it at a time. They are played at the times at which they were."
)
"""what the heading of a listing means"""

_NUMBER = re.compile(r"[\d/:._#-]+\Z")

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
"""of JSON"""

_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "'{}"}
"""what would end TOML's literal string or begin or end a template's tag"""

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
    """ascending; none: its tasks never sleep"""
    woken: float
    """part of the sleeps that other tasks end"""
    wakes: list[float]
    """wakeups of each group for each run"""
    lives: list[tuple[int, int]]
    """when its tasks live, ns since the trace's begin"""

    def parts(self, duration_ns: int) -> int:
        """Return how many of the lives do not go through the whole trace."""
        return sum(life != (0, duration_ns) for life in self.lives)


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
    brief: float
    """part of the runs, or of the CPU time if that is more, of lives that do not go through the whole trace"""
    concurrency: Floats
    """how many of the groups' tasks ran or waited, in each of equal parts of the time"""
    left_out: float
    """CPU time of all other tasks over that of all CPUs"""
    unread: int = 0
    """lines of sched events that were not understood"""
    first_unread: str = ""

    def row(self, group: Group) -> tuple[str, ...]:
        """Return what a listing says of a group: name, tasks, partial lives, runs, how it is woken."""
        how = f"{group.woken:.0%}" if len(group.sleeps_ns) else "never sleep"
        return printable(group.name), str(group.tasks), str(group.parts(self.duration_ns)), str(len(group.runs_ns)), how

    @property
    def has_parts(self) -> bool:
        """Whether a life does not go through the whole trace."""
        return any(group.parts(self.duration_ns) for group in self.groups)

    @property
    def threads(self) -> int:
        """How many threads play it."""
        return sum(len(lives.threads(group.lives)) for group in self.groups)

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


def of_trace(trace: Trace, where: str, selection: Selection = EVERYTHING) -> Load:
    """Return what a trace shows.

    Args:
        trace: its events.
        where: the file's name, for errors.
        selection: which tasks are kept, beside those of the kernel, which are not.

    Raises:
        HeddleError: it has no sched_switch, no wakeups, none that is understood, or no task but the kernel's; or the
            selection keeps none.
    """
    _refuse_without(trace, {"sched_switch": Kind.SWITCH}, where, _GIVE)
    _refuse_without(trace, _WAKEUPS, where, "without them it is not known when a task waits")
    selection.check(where)
    found = of_events(trace.events, lambda pid, comm: _is_kept(pid, comm, selection))
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


def of_events(events: Events, keeps: Callable[[int, str], bool]) -> Load:
    """Return what events show.

    Args:
        events: with switches and wakeups.
        keeps: tells of a pid and a name whether the load has that task.
    """
    # The highest number says how many CPUs there are; the time of those that show nothing is of no use here.
    line = timeline.build(events, silent=False)
    members: dict[tuple[str, bool], list[Life]] = defaultdict(list)
    for life in lives.of(line, events):
        comm = line.comms.get(life.pid, "?")
        if keeps(life.pid, comm):
            members[group_name(comm), len(life.sleeps_ns) == 0].append(life)
    order = sorted(members)
    edges, by_tasks, woken = _wakeups(events, line.start_ns, _Place([members[key] for key in order]))
    groups = []
    for number, key in enumerate(order):
        mine = members[key]
        pids = sorted({life.pid for life in mine})
        runs = np.sort(np.concatenate([life.runs_ns for life in mine]))
        groups.append(
            Group(
                name=key[0],
                tasks=len(pids),
                nice=_nice(line, pids),
                runs_ns=runs,
                sleeps_ns=np.sort(np.concatenate([life.sleeps_ns for life in mine])),
                woken=by_tasks[number] / max(woken[number], 1),
                wakes=[edges[number, other] / len(runs) for other in range(len(order))],
                lives=[life.span for life in mine],
            )
        )
    seconds = max(line.duration_ns, 1) / 1e9
    kept = np.unique([life.pid for some in members.values() for life in some])
    ran, others = (line.tasks().take(np.isin(line.tasks().pid, kept, invert=not mine)) for mine in (True, False))
    waited = line.waits.take(np.isin(line.waits.pid, kept))
    spent, spent_by_others = (int((runs.end_ns - runs.start_ns).sum()) for runs in (ran, others))
    cpu_ns = max(line.cpus * line.duration_ns, 1)
    return Load(
        cpus=line.cpus,
        duration_ns=line.duration_ns,
        groups=groups,
        utilisation=spent / cpu_ns,
        switches=len(ran) / seconds,
        wakeups=sum(woken.values()) / seconds,
        brief=_brief([life for some in members.values() for life in some], line.duration_ns),
        concurrency=_at_a_time(
            np.concatenate([ran.start_ns, waited.start_ns]) - line.start_ns,
            np.concatenate([ran.end_ns, waited.end_ns]) - line.start_ns,
            line.duration_ns,
        ),
        left_out=spent_by_others / cpu_ns,
    )


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


def _brief(all_lives: list[Life], duration_ns: int) -> float:
    """Return the part of the runs, or of the CPU time, of lives that do not go through the whole trace."""
    parts = [life for life in all_lives if life.span != (0, duration_ns)]
    runs, of = (sum(len(life.runs_ns) for life in some) for some in (parts, all_lives))
    spent, of_all = (sum(int(life.runs_ns.sum()) for life in some) for some in (parts, all_lives))
    return max(runs / max(of, 1), spent / max(of_all, 1))


class _Place:
    """Which group a task belongs to at a time."""

    def __init__(self, groups: list[list[Life]]) -> None:
        self._lives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, mine in enumerate(groups):
            for life in mine:
                self._lives[life.pid].append((life.end_ns, number))
        for own in self._lives.values():
            own.sort()

    def at(self, pid: int, time_ns: int) -> int | None:
        """Return the group of a task's life at a time since the trace's begin, or of the next one; none: no group."""
        own = self._lives.get(pid)
        return own[min(bisect_left(own, (time_ns, 0)), len(own) - 1)][1] if own else None


def group_name(comm: str) -> str:
    """Return a task's name without its number; bytes that are no UTF-8 are spelt out in hex."""
    raw = comm.replace(perfscript.LINE_END, "\n").encode("utf-8", "surrogateescape")
    name = raw.decode("utf-8", "backslashreplace")
    return _NUMBER.sub("", name) or name


def _nice(line: Timeline, pids: list[int]) -> int:
    """Return the commonest nice level; priorities of real-time tasks are no nice levels and count as 0."""
    levels = Counter(line.prios.get(pid, 120) - 120 for pid in pids)
    level = levels.most_common(1)[0][0]
    return level if -20 <= level <= 19 else 0


def _wakeups(events: Events, origin: int, place: _Place) -> tuple[Counter[tuple[int, int]], Counter[int], Counter[int]]:
    """Count wakeups: by waker's and woken's group, of each group by tasks of the groups, of each group by anyone.

    Args:
        events: of the trace.
        origin: its begin.
        place: the groups.
    """
    kind = Kind.WAKING if len(events.where(Kind.WAKING)) else Kind.WAKEUP
    edges: Counter[tuple[int, int]] = Counter()
    by_tasks: Counter[int] = Counter()
    woken: Counter[int] = Counter()
    rows = events.where(kind)
    columns = (events.time_ns[rows] - origin, events.current[rows], events.pid[rows])
    for time, waker, pid in zip(*(column.tolist() for column in columns), strict=True):
        mine = place.at(pid, time)
        if mine is None:
            continue
        woken[mine] += 1
        its = place.at(waker, time) if waker not in (IDLE, pid) else None
        if its is not None:
            edges[its, mine] += 1
            by_tasks[mine] += 1
    return edges, by_tasks, woken


def workload(found: Load, name: str, source: str) -> str:
    """Return the workload's TOML file.

    Args:
        found: the load.
        name: of the workload.
        source: where the trace is from.
    """
    model = {"length_ns": found.duration_ns, "groups": [_group(group, found) for group in found.groups]}
    text = json.dumps(model, separators=(",", ":"), ensure_ascii=True)
    # Names are what any user of the recorded machine made them; JSON's own braces stand beside no other brace, % or #.
    text = _STRING.sub(lambda string: string[0].translate(_ESCAPED), text)
    tasks = sum(group.tasks for group in found.groups)
    seconds = found.duration_ns / 1e9
    load = f"{units.counted(tasks, 'task')} in {units.counted(len(found.groups), 'group')}"
    summary = f"{load}, recorded for {seconds:.3g} s on {units.counted(found.cpus, 'CPU')}"
    # Lives are at times of the trace: where they matter, the whole trace is played.
    whole_ms = max(1, round(found.duration_ns / 1e6))
    return _TEMPLATE.format(
        name=tomlfile.string(name),
        summary=tomlfile.string(summary),
        source=tomlfile.string(source),
        warm_up_ms=0 if found.brief > _BRIEF else _WARM_UP_MS,
        for_ms=whole_ms if found.brief > _BRIEF else _FOR_MS,
        model=text,
        fidelity=_FIDELITY,
    )


def _group(group: Group, found: Load) -> dict[str, object]:
    """Return what the file says of a group; lives only if one does not go through the whole trace."""
    sleeps = len(group.sleeps_ns) > 0
    pieces = float(np.ceil(group.runs_ns / _PIECE_NS).sum()) or 1.0
    runs = _quantiles(group.runs_ns) if sleeps else [_PIECE_NS, _PIECE_NS]
    wakes = [rate if sleeps else rate * len(group.runs_ns) / pieces for rate in group.wakes]
    dealt = lives.threads(group.lives)
    return {
        "name": group.name,
        "tasks": len(dealt),
        "nice": group.nice,
        "runs_insns": runs,
        "sleeps_ns": _quantiles(group.sleeps_ns) if sleeps else [],
        "woken": round(group.woken, 4),
        # Nobody wakes a task that never sleeps.
        "wakes": [round(rate * bool(len(o.sleeps_ns)), 4) for rate, o in zip(wakes, found.groups, strict=True)],
        **({"lives_ns": [list(chain(*thread)) for thread in dealt]} if group.parts(found.duration_ns) else {}),
    }


_TEMPLATE = """name = {name}
summary = {summary}
source = {source}
window = "for_ms"

[params.warm_up_ms]
default = {warm_up_ms}
minimum = 0
unit = "ms"
summary = "how long the load is played before the measurement"

[params.for_ms]
default = {for_ms}
unit = "ms"
summary = "how long it is played then"

[[steps]]
name = "replay"
argv = [
  "heddle-load", "replay", "--warm-up-ms", "{{{{ warm_up_ms }}}}", "--for-ms", "{{{{ for_ms }}}}",
  "--seed", "{{{{ seed }}}}",
]
stdin = '''{{% raw %}}{model}{{% endraw %}}'''

[[metrics]]
name = "throughput"
step = "replay"
unit = "runs/s"
better = "higher"
value = "throughput"
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


def _quantiles(ordered: Ints) -> list[int]:
    """Return quantiles at equal steps, the last one such that draws between the last two have the tail's mean.

    The maximum would not do: a single long sleep of a thousand would lengthen one draw in forty.
    """
    points = np.quantile(ordered, np.linspace(0, 1, _POINTS))
    tail = ordered[ordered >= points[-2]]
    points[-1] = 2 * tail.mean() - points[-2]
    return [int(value) for value in points]
