"""ftrace's text, as `/sys/kernel/tracing/trace` shows it: for traces of real machines and of older runs.

Format: Documentation/trace/ftrace.rst. A stamp of six decimals is rounded to the microsecond by the kernel; with
`trace_clock` x86-tsc or counter it is a bare integer, taken as nanoseconds.
"""

import re
from collections.abc import Callable

import numpy as np

from heddle_lab.measures import events
from heddle_lab.measures.events import Events, Ints, Kind, Names

_CHUNK = 1 << 24
"""characters parsed at a time, so that memory is bounded"""


def _up_to(most: int) -> str:
    """Return a pattern of the numbers from 0 to one; up to two zeros may lead, as in the number of a CPU."""
    digits = str(most)
    less = [
        rf"{digits[:at]}[0-{int(digit) - 1}]\d{{{len(digits) - at - 1}}}"
        for at, digit in enumerate(digits)
        if int(digit)
    ]
    fewer = [rf"\d{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    return f"0{{0,2}}(?:{'|'.join([*fewer, *less, digits])})"


# What the kernel can give. A line with another number is damaged or made up, and is not understood.
CPU = _up_to(8191)
"""CONFIG_NR_CPUS is at most 8192 (arch/x86/Kconfig)"""
PID = _up_to(1 << 22)
"""PID_MAX_LIMIT (include/linux/threads.h)"""
_PRIO = f"(?:-1|{_up_to(139)})"
"""-1: SCHED_DEADLINE; MAX_PRIO is 140 (include/linux/sched/prio.h)"""
_NS = (1 << 63) - 1
SECONDS = _up_to(_NS // 10**9 - 1)
"""such that the ns fit into 63 bits whatever the fraction"""

# A name may hold spaces, dashes, brackets and `=`: it has at most 15 characters, too few to forge what follows it.
_LINE = re.compile(
    rf"-({PID}) +(?:\([ \d-]+\) +)?\[({CPU})\] +(?:[^ ]+ +)??"
    rf"({SECONDS}(?=\.)|{_up_to(_NS)}(?=:))(?:\.(\d{{6}}))?: (?:\w+:)?(\w+): (.*)$",
    re.MULTILINE,
)

_WOKEN = re.compile(
    rf"^comm=(?P<comm>.*) pid=(?P<pid>{PID}) prio=(?P<prio>{_PRIO})(?: success=1)? target_cpu=(?P<value>{CPU})$"
)
_FIELDS: dict[str, re.Pattern[str]] = {
    "sched_switch": re.compile(
        rf"prev_comm=(?P<prev_comm>.*) prev_pid=(?P<current>{PID}) prev_prio={_PRIO} prev_state=(?P<value>\S+) ==> "
        rf"next_comm=(?P<comm>.*) next_pid=(?P<pid>{PID}) next_prio=(?P<prio>{_PRIO})$"
    ),
    "sched_waking": _WOKEN,
    "sched_wakeup": _WOKEN,
    "sched_wakeup_new": _WOKEN,
    "sched_migrate_task": re.compile(
        rf"comm=(?P<comm>.*) pid=(?P<pid>{PID}) prio=(?P<prio>{_PRIO}) orig_cpu={CPU} dest_cpu=(?P<value>{CPU})$"
    ),
    "sched_process_fork": re.compile(rf"comm=.* pid={PID} child_comm=(?P<comm>.*) child_pid=(?P<pid>{PID})$"),
    "sched_process_exec": re.compile(rf"filename=.* pid=(?P<pid>{PID}) old_pid={PID}$"),
    "sched_process_exit": re.compile(rf"comm=(?P<comm>.*) pid=(?P<pid>{PID}) prio=(?P<prio>{_PRIO})(?!\d).*$"),
    "affinity": re.compile(rf".*target=(?P<pid>{PID}) mask=\{{(?P<value>[0-9a-fx,]+)\}}.*$"),
}


def parse(text: str, cpus: int | None = None) -> Events:
    """Parse ftrace's text; lines that are no events are skipped.

    Args:
        text: the content of `trace`; several blocks may follow one another.
        cpus: number of CPUs; none: what the header says (`#P:4`), or as many as occur.
    """
    if cpus is None and (match := re.search(rf"^# entries.*#P:({CPU})\b", text, re.MULTILINE)):
        cpus = int(match[1])
    reader = _Reader(cpus or 1)
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHUNK)
        end = len(text) if end < 0 else end + 1
        reader.read(text[start:end])
        start = end
    return events.merge(reader.batches, reader.names.comms(), tuple(reader.masks), cpus)


def understands(event: str, fields: str) -> bool:
    """Tell whether an event's fields are known, and their numbers such as the kernel can give."""
    return event in _FIELDS and _FIELDS[event].match(fields) is not None


class _Reader:
    """Collects columns chunk by chunk."""

    def __init__(self, cpus: int) -> None:
        self.batches: list[dict[str, Ints]] = []
        self.names = Names()
        self.masks: dict[int, int] = {}
        self._present = (1 << cpus) - 1

    def read(self, chunk: str) -> None:
        lines = _LINE.findall(chunk)
        if not lines:
            return
        current, cpu, whole, fraction, name, fields = zip(*lines, strict=True)
        columns = {
            "time_ns": _times(whole, fraction),
            "cpu": _integers(cpu),
            "kind": np.full(len(lines), int(Kind.OTHER), dtype=np.int64),
            "current": _integers(current),
            "pid": _integers(current),
            "value": np.zeros(len(lines), dtype=np.int64),
            "prio": np.full(len(lines), events.NO_PRIO, dtype=np.int64),
        }
        rows: dict[str, list[int]] = {known: [] for known in _FIELDS}
        for row, known in enumerate(name):
            if known in rows:
                rows[known].append(row)
        for known, pattern in _FIELDS.items():
            # A line that the pattern does not know stays `Kind.OTHER`.
            found = [(row, match.groups()) for row in rows[known] if (match := pattern.match(fields[row]))]
            if found:
                at, texts = zip(*found, strict=True)
                groups = dict(zip(pattern.groupindex, zip(*texts, strict=True), strict=True))
                self._fill(columns, np.array(at), events.NAMES[known], groups)
        self.batches.append(columns)

    def _fill(self, columns: dict[str, Ints], rows: Ints, kind: Kind, groups: dict[str, tuple[str, ...]]) -> None:
        columns["kind"][rows] = int(kind)
        for column in ("pid", "current", "prio"):
            if column in groups:
                columns[column][rows] = _integers(groups[column])
        if "value" in groups:
            read: Callable[[str], int] = {Kind.SWITCH: _state, Kind.AFFINITY: self._mask_number}.get(kind, int)
            known = {text: read(text) for text in dict.fromkeys(groups["value"])}
            columns["value"][rows] = [known[text] for text in groups["value"]]
        for pid, comm in (("current", "prev_comm"), ("pid", "comm")):
            if comm in groups:
                times = columns["time_ns"][rows].tolist()
                last = dict(zip(groups[pid], zip(times, groups[comm], strict=True), strict=True))
                for task, (time, name) in last.items():
                    self.names.add(int(task), time, name)

    def _mask_number(self, words: str) -> int:
        mask = sum(int(word, 16) << 64 * place for place, word in enumerate(words.split(",")))
        return self.masks.setdefault(mask & self._present, len(self.masks))


def _integers(texts: tuple[str, ...]) -> Ints:
    return np.fromiter(map(int, texts), dtype=np.int64, count=len(texts))


def _times(whole: tuple[str, ...], fraction: tuple[str, ...]) -> Ints:
    """Return ns: seconds and microseconds, or a bare count."""
    if fraction[0]:
        return _integers(whole) * 1_000_000_000 + _integers(fraction) * 1_000
    return _integers(whole)


def _state(letters: str) -> int:
    """Return the bits of a `prev_state` such as `S`, `R+` or `D|K`."""
    bits = events.STATE_PREEMPTED if letters.endswith("+") else 0
    return bits | sum(events.STATE_LETTERS.get(letter, 0) for letter in letters.rstrip("+").split("|"))
