"""ftrace's ring buffer in its binary form, as `per_cpu/cpuN/trace_pipe_raw` gives it: exact to the nanosecond.

Text costs the guest some ten thousand instructions an event and is cut to microseconds; a page is copied as it is.
Layout: include/linux/ring_buffer.h, `events/header_page` and `events/header_event` of tracefs, on a 64-bit kernel.
"""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle_lab.errors import HeddleError
from heddle_lab.measures import events
from heddle_lab.measures.events import Events, Ints, Kind, Names

PAGE = 4096
_PAGE_HEADER = 16
_COMMIT_MASK = (1 << 20) - 1
"""length of a page's data; the bits above say that events before it were lost"""

# enum ring_buffer_type; up to 28 it is the length of the data in words.
_DATA_MAX, _PADDING, _TIME_EXTEND, _TIME_STAMP = 28, 29, 30, 31
_DELTA_BITS = 27

_FIELD = re.compile(
    r"field:(?P<type>[^;]*?)\s(?P<name>\w+)(?P<array>\[[^\]]*\])?;"
    r"\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);\s*signed:(?P<signed>[01]);"
)


@dataclass(frozen=True)
class Field:
    """Where a field of a tracepoint lies."""

    offset: int
    size: int
    signed: bool
    indirect: bool
    """`__data_loc`: a word with offset and length of the data"""


@dataclass(frozen=True)
class Format:
    """A tracepoint's `format` file."""

    name: str
    number: int
    fields: dict[str, Field]


def parse_format(text: str) -> Format:
    """Parse `events/SYSTEM/NAME/format` of tracefs.

    Raises:
        HeddleError: it has no name or no ID.
    """
    name = re.search(r"^name: (\S+)", text, re.MULTILINE)
    number = re.search(r"^ID: (\d+)", text, re.MULTILINE)
    if not name or not number:
        raise HeddleError("a tracepoint's format file has no name or no ID: the guest's trace is damaged")
    fields = {
        match["name"]: Field(
            offset=int(match["offset"]),
            size=int(match["size"]),
            signed=match["signed"] == "1",
            indirect=match["type"].startswith("__data_loc"),
        )
        for match in _FIELD.finditer(text)
    }
    return Format(name[1], int(number[1]), fields)


def parse_block(text: str, step: str) -> Events:
    """Parse the binary trace of a step as the guest's agent sends it.

    Args:
        text: all that came through the trace port: a line `{"step", "cpus", "lost", "formats": [...]}`, a line
            `{"cpu", "pages"}` for each CPU (base64), a line `{"end"}`; other blocks are skipped.
        step: the step.

    Raises:
        HeddleError: the step was not traced, or events were lost.
    """
    header: dict[str, object] | None = None
    pages: dict[int, bytes] = {}
    for line in _json_lines(text):
        content = json.loads(line)
        if content.get("step") == step and "formats" in content:
            header = content
        elif "end" in content and header:
            break
        elif "pages" in content and header:
            pages[content["cpu"]] = base64.b64decode(content["pages"])
    if header is None:
        raise HeddleError(f"step '{step}' has no binary trace: give it trace.format = \"raw\"")
    if header["lost"]:
        raise HeddleError(f"step '{step}': {header['lost']} trace events were lost; raise the trace's buffer_kb")
    formats = header["formats"]
    if not isinstance(formats, list):
        raise HeddleError(f"step '{step}': the trace's formats are not a list")
    return parse(pages, [parse_format(text) for text in formats])


def _json_lines(text: str) -> Iterator[str]:
    """Yield the lines that are JSON objects without a copy of the whole."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if text[start : start + 1] == "{":
            yield text[start:end]
        start = end + 1


def parse(pages: dict[int, bytes], formats: list[Format]) -> Events:
    """Parse the pages of all CPUs.

    Args:
        pages: CPU -> its pages, as read from `trace_pipe_raw`.
        formats: of the tracepoints that may occur; others count as `Kind.OTHER`.
    """
    masks: dict[int, int] = {}
    paths: dict[str, int] = {}
    names = Names()
    batches = []
    cpus = max(pages, default=0) + 1
    for cpu, data in sorted(pages.items()):
        times, offsets = _records(data)
        batches.append(_Decoder(data, offsets, cpus, names, masks, paths).columns(times, cpu, formats))
    return events.merge(batches, names.comms(), tuple(masks), cpus, tuple(paths))


def _records(data: bytes) -> tuple[Ints, Ints]:
    """Return times and offsets (of the tracepoint's own bytes) of all records of a CPU."""
    times: list[int] = []
    offsets: list[int] = []
    for page in range(0, len(data) - _PAGE_HEADER + 1, PAGE):
        words = memoryview(data)[
            page : page + PAGE - (len(data) - page) % 4 if len(data) - page < PAGE else page + PAGE
        ]
        _page_records(words.cast("I"), page, times, offsets)
    return np.array(times, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _page_records(words: "memoryview[int]", page: int, times: list[int], offsets: list[int]) -> None:
    time = words[0] | words[1] << 32
    end = min((_PAGE_HEADER + (words[2] & _COMMIT_MASK)) >> 2, len(words))
    at = _PAGE_HEADER >> 2
    while at < end:
        word = words[at]
        length, delta = word & 31, word >> 5
        if length <= _DATA_MAX:
            time += delta
            times.append(time)
            if length:
                offsets.append(page + (at + 1 << 2))
                at += 1 + length
            else:  # too long for the 5 bits: the next word is the length, itself included
                offsets.append(page + (at + 2 << 2))
                at += 1 + (words[at + 1] + 3 >> 2)
        elif length == _PADDING:
            if not delta:  # nothing more on this page
                return
            time += delta
            at += 1 + (words[at + 1] + 3 >> 2)
        else:
            high = words[at + 1] << _DELTA_BITS
            # An absolute stamp has 59 bits; the rest is that of the last time.
            time = time + delta + high if length == _TIME_EXTEND else (time >> 59 << 59) | high | delta
            at += 2


class _Decoder:
    """Turns the records of one CPU into columns."""

    def __init__(
        self, data: bytes, offsets: Ints, cpus: int, names: Names, masks: dict[int, int], paths: dict[str, int]
    ) -> None:
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        self._offsets = offsets
        self._cpus = cpus
        self._names = names
        self._masks = masks
        self._paths = paths

    def columns(self, times: Ints, cpu: int, formats: list[Format]) -> dict[str, Ints]:
        """Return the columns of `events.merge`."""
        numbers = self._gather(Field(0, 2, False, False), self._offsets)
        current = self._gather(Field(4, 4, True, False), self._offsets)
        columns = {
            "time_ns": times,
            "cpu": np.full(len(times), cpu, dtype=np.int64),
            "kind": np.full(len(times), int(Kind.OTHER), dtype=np.int64),
            "current": current,
            "pid": current.copy(),
            "value": np.zeros(len(times), dtype=np.int64),
            "prio": np.full(len(times), events.NO_PRIO, dtype=np.int64),
        }
        for known in formats:
            rows = np.flatnonzero(numbers == known.number)
            if known.name in events.NAMES and len(rows):
                self._fill(columns, rows, known)
        return columns

    def _fill(self, columns: dict[str, Ints], rows: Ints, known: Format) -> None:
        kind = events.NAMES[known.name]
        pid, value, prio, comm = _FIELDS[kind]
        at = self._offsets[rows]
        columns["kind"][rows] = int(kind)
        columns["pid"][rows] = self._gather(known.fields[pid], at)
        if kind is Kind.AFFINITY:
            columns["value"][rows] = self._mask_numbers(known.fields["mask"], at)
        elif kind is Kind.CGROUP:
            texts = [self._text(known.fields["dst_path"], start) for start in at.tolist()]
            columns["value"][rows] = [self._paths.setdefault(text, len(self._paths)) for text in texts]
        elif value:
            columns["value"][rows] = self._gather(known.fields[value], at)
        if prio:
            columns["prio"][rows] = self._gather(known.fields[prio], at)
        if kind is Kind.SWITCH:
            columns["current"][rows] = self._gather(known.fields["prev_pid"], at)
            self._name(columns["current"][rows], columns["time_ns"][rows], known.fields["prev_comm"], at)
        if comm:
            self._name(columns["pid"][rows], columns["time_ns"][rows], known.fields[comm], at)

    def _gather(self, where: Field, at: Ints) -> Ints:
        """Return an integer field of the records at some offsets."""
        raw = self._rows(where, at)
        kind = np.dtype(f"<{'i' if where.signed else 'u'}{where.size}")
        return np.ascontiguousarray(raw).view(kind)[:, 0].astype(np.int64)

    def _rows(self, where: Field, at: Ints) -> NDArray[np.uint8]:
        if not len(at):
            return np.empty((0, where.size), dtype=np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, where.size)
        return windows[at + where.offset]

    def _name(self, pids: Ints, times: Ints, where: Field, at: Ints) -> None:
        """Keep the last name of each task."""
        _, last = np.unique(pids[::-1], return_index=True)
        last = len(pids) - 1 - last
        for pid, time, start in zip(pids[last].tolist(), times[last].tolist(), at[last].tolist(), strict=True):
            self._names.add(pid, time, self._text(where, start))

    def _text(self, where: Field, start: int) -> str:
        """Return a text field of the record at an offset."""
        begin, size = start + where.offset, where.size
        if where.indirect:
            word = int.from_bytes(self._bytes[begin : begin + 4].tobytes(), "little")
            begin, size = start + (word & 0xFFFF), word >> 16
        return self._bytes[begin : begin + size].tobytes().split(b"\0", 1)[0].decode("utf-8", "replace")

    def _mask_numbers(self, where: Field, at: Ints) -> list[int]:
        """Return the number of each record's mask; what lies above the last CPU is not part of the kernel's mask."""
        present = (1 << self._cpus) - 1
        masks = [int.from_bytes(row.tobytes(), "little") & present for row in self._rows(where, at)]
        return [self._masks.setdefault(mask, len(self._masks)) for mask in masks]


# kind -> fields with the task, the value, the priority, the task's name
_FIELDS: dict[Kind, tuple[str, str | None, str | None, str | None]] = {
    Kind.SWITCH: ("next_pid", "prev_state", "next_prio", "next_comm"),
    Kind.WAKING: ("pid", "target_cpu", "prio", "comm"),
    Kind.WAKEUP: ("pid", "target_cpu", "prio", "comm"),
    Kind.WAKEUP_NEW: ("pid", "target_cpu", "prio", "comm"),
    Kind.MIGRATE: ("pid", "dest_cpu", "prio", "comm"),
    Kind.FORK: ("child_pid", None, None, "child_comm"),
    Kind.EXEC: ("pid", None, None, None),
    Kind.EXIT: ("pid", None, "prio", "comm"),
    Kind.AFFINITY: ("target", None, None, None),
    Kind.CGROUP: ("pid", None, None, "comm"),
    Kind.SCHEDULE_ENTRY: ("common_pid", None, None, None),
    Kind.SCHEDULE_EXIT: ("common_pid", None, None, None),
}
