"""Text of `perf sched script`, `perf script` and `trace-cmd report`, brought into the form that `ftrace` reads.

perf separates name and pid by spaces, and puts the tracepoint's system before its name; libtraceevent, which both
use, shows the fields of sched events in a short form of its own.

Names of tasks stand there as they are: any bytes but zero, line ends too, and what looks like the format.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from heddle_lab.measures import ftrace
from heddle_lab.measures.events import INTERRUPT
from heddle_lab.measures.timeline import SKEW_NS

# comm, pid (perf may add /tid), CPU, flags (perf has none), time, event.
_HEAD = re.compile(
    rf"^.{{0,99}}?[\s-](?:{ftrace.PID}/)?(?P<pid>-1|{ftrace.PID})\s+\[(?P<cpu>{ftrace.CPU})\]\s+(?:(?P<flags>[^\s:]+)\s+)?"
    rf"(?P<seconds>{ftrace.SECONDS})\.(?P<fraction>\d{{6,9}}):\s+(?:sched:)?(?P<event>sched_\w+): *(?P<fields>[^\0]*)$"
)
_HARD = re.compile(r"..[hHzZ]")
"""flags of an event within a hardware interrupt (Documentation/trace/ftrace.rst, "hardirq/softirq")

A soft interrupt may be the task's own doing, such as sending to a socket of the same machine.
"""
_NEEDED = ("sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new")
_NAMED = re.compile(rf"\b(?:{'|'.join(_NEEDED)})\b")
_OF_EVENT = re.compile(r"\d: +(?:\w+:)?(?P<event>\w+):")
# A name of more characters would be made up of others' fields.
_SWITCH = re.compile(
    r"^(?P<a>.{0,15}):(?P<pid>\d+) \[(?P<prio>-?\d+)\] (?P<state>\S+) ==> "
    r"(?P<b>.{0,15}):(?P<next>\d+) \[(?P<nprio>-?\d+)\]"
)
_WOKEN = re.compile(r"^(?P<comm>.{0,15}):(?P<pid>\d+) \[(?P<prio>-?\d+)\].*?(?:CPU[:=]|target_cpu=)(?P<cpu>\d+)")

LINE_END = "\udc0a"
"""stands for a line end in a name: what `surrogateescape` makes of bytes, which never makes this one"""

_PARTS = 31
"""two names of 15 line ends break a line into as many and one"""

_LONGEST = 5_000
"""characters of an event's line: none has more than a path's 4096 and a name; on longer ones the patterns are slow"""

_SHOWN = 300
"""characters that are kept of a line that is not understood"""


def raw(name: str) -> bytes:
    """Return a task's name as the kernel has it."""
    return name.replace(LINE_END, "\n").encode("utf-8", "surrogateescape")


class Script(NamedTuple):
    """The sched events of a text."""

    ftrace: str
    """as ftrace would show them; `LINE_END` for a line end in a name"""
    unread: list[str]
    """lines of switches and wakeups that are not understood"""
    jump: str
    """where and how a CPU's clock goes back; empty if none does"""


def read(text: str) -> Script:
    """Return the sched events of a text; all else is left out."""
    entries, unread, jump = [], [], ""
    newest: dict[str, int] = {}
    for number, line, head in _lines(text):
        if head is None:
            if _is_needed(line):
                unread.append(line[:_SHOWN])
            continue
        fields, understood = _fields(head)
        if not understood and head["event"] in _NEEDED:
            unread.append(line[:_SHOWN])
            continue
        # Tools merge what the CPUs recorded: between CPUs the order may be another one, on one it is time's.
        time = _time_ns(head)
        before = newest.get(head["cpu"], time)
        if time < before - SKEW_NS and not jump:
            jump = f"line {number}: the clock of CPU {int(head['cpu'])} goes back from {before / 1e9} to {time / 1e9} s"
        newest[head["cpu"]] = max(time, before)
        entries.append(f"-{_current(head)} [{head['cpu']}] {time}: {head['event']}: {fields}\n")
    return Script("".join(entries), unread, jump)


def _lines(text: str) -> Iterator[tuple[int, str, re.Match[str] | None]]:
    """Yield number, text and head of each line; of one that a name's line ends broke, the head has all parts."""
    number, line, parts = 0, "", [""]
    head: re.Match[str] | None = None
    for at, following in enumerate(text.split("\n"), 1):
        short = len(following) <= _LONGEST
        ahead = _HEAD.match(following) if short else None
        if (
            ahead is None
            and short
            and head
            and len(parts) < _PARTS
            and _is_broken(head)
            and not _NAMED.search(following)
        ):
            parts.append(following)
            head = _HEAD.match(LINE_END.join(parts)) or head
            continue
        yield number, line, head
        number, line, head, parts = at, following, ahead, [following]
    yield number, line, head


def _is_broken(head: re.Match[str]) -> bool:
    return not _fields(head)[1]


def _is_needed(line: str) -> bool:
    """Tell whether a line that is no event should be one: it names a switch or a wakeup, and not as another's name."""
    if line.startswith("#") or not _NAMED.search(line):
        return False
    named = _OF_EVENT.search(line)
    return named is None or named["event"] in _NEEDED


def _time_ns(head: re.Match[str]) -> int:
    # Nanoseconds fit where ftrace's bare counts stand.
    return int(head["seconds"]) * 1_000_000_000 + int(head["fraction"].ljust(9, "0"))


def _current(head: re.Match[str]) -> int:
    """Return the task that does it: the one that runs, but for wakeups by a hardware interrupt."""
    by_interrupt = _HARD.match(head["flags"] or "") and head["event"] != "sched_switch"
    return INTERRUPT if by_interrupt else max(int(head["pid"]), 0)


def _fields(head: re.Match[str]) -> tuple[str, bool]:
    """Return the fields in the kernel's form, and whether they are understood."""
    event, fields = head["event"], head["fields"].rstrip()
    if ftrace.understands(event, fields):
        return fields, True
    if event == "sched_switch" and (switch := _SWITCH.match(fields)):
        fields = (
            f"prev_comm={switch['a']} prev_pid={switch['pid']} prev_prio={switch['prio']} prev_state={switch['state']}"
            f" ==> next_comm={switch['b']} next_pid={switch['next']} next_prio={switch['nprio']}"
        )
    elif woken := _WOKEN.match(fields):
        fields = f"comm={woken['comm']} pid={woken['pid']} prio={woken['prio']} target_cpu={woken['cpu']}"
    return fields, ftrace.understands(event, fields)
