"""Text of `perf sched script`, `perf script` and `trace-cmd report`, brought into the form that `ftrace` reads.

perf separates name and pid by spaces, and puts the tracepoint's system before its name; libtraceevent, which both
use, shows the fields of sched events in a short form of its own.
"""

import re

from heddle_lab.measures import ftrace
from heddle_lab.measures.events import Events, Kind

# comm, pid (perf may add /tid), CPU, flags (perf has none), time, event.
_HEAD = re.compile(
    r"^\s*(?P<comm>\S.*?)[\s-]\s*(?:\d+/)?(?P<pid>-?\d+)\s+\[(?P<cpu>\d+)\]\s+(?:[^\s:]+\s+)?"
    r"(?P<seconds>\d+)\.(?P<fraction>\d{6,9}):\s+(?:sched:)?(?P<event>sched_\w+):\s*(?P<fields>.*)$"
)
_NEEDED = re.compile(r"\bsched_(?:switch|waking|wakeup|wakeup_new):")
_SWITCH = re.compile(
    r"^(?P<a>.*):(?P<pid>\d+) \[(?P<prio>-?\d+)\] (?P<state>\S+) ==> (?P<b>.*):(?P<next>\d+) \[(?P<nprio>-?\d+)\]"
)
_WOKEN = re.compile(r"^(?P<comm>.*):(?P<pid>\d+) \[(?P<prio>-?\d+)\].*?(?:CPU[:=]|target_cpu=)(?P<cpu>\d+)")


def to_ftrace(text: str) -> str:
    """Return the sched events of a text as ftrace would show them; all else is left out."""
    lines = (_HEAD.match(line) for line in text.splitlines())
    return "".join(_line(match) for match in lines if match)


def unread(text: str, events: Events) -> list[str]:
    """Return the lines of switches and wakeups of a text that are not among its events.

    Args:
        text: as `to_ftrace` takes it.
        events: what was understood of it.
    """
    lines = [line for line in text.splitlines() if _NEEDED.search(line) and not line.startswith("#")]
    if len(lines) == len(events.where(Kind.SWITCH, Kind.WAKING, Kind.WAKEUP, Kind.WAKEUP_NEW)):
        return []
    return [line for line in lines if not ((head := _HEAD.match(line)) and ftrace.understands(_line(head)))]


def _line(head: re.Match[str]) -> str:
    fields = head["fields"]
    if switch := _SWITCH.match(fields):
        fields = (
            f"prev_comm={switch['a']} prev_pid={switch['pid']} prev_prio={switch['prio']} prev_state={switch['state']}"
            f" ==> next_comm={switch['b']} next_pid={switch['next']} next_prio={switch['nprio']}"
        )
    elif "pid=" not in fields and (woken := _WOKEN.match(fields)):
        fields = f"comm={woken['comm']} pid={woken['pid']} prio={woken['prio']} target_cpu={woken['cpu']}"
    # Nanoseconds fit where ftrace's bare counts stand.
    time = int(head["seconds"]) * 1_000_000_000 + int(head["fraction"].ljust(9, "0"))
    pid = max(int(head["pid"]), 0)
    return f"{head['comm']}-{pid} [{head['cpu']}] {time}: {head['event']}: {fields.rstrip()}\n"
