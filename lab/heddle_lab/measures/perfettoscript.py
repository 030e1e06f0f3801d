"""Sched events of a trace that Perfetto recorded: the data source `linux.ftrace`, compact or not.

Format: protos/perfetto/trace/ftrace of perfetto.dev. In the compact form a switch does not say which task it leaves:
it is the one that the CPU's switch before it went to.
"""

import zlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import zstandard
from google.protobuf.message import DecodeError
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import FtraceEventBundle, Trace

from heddle_lab.measures import events
from heddle_lab.measures.events import Events, Ints, Kind, Names

_PACKET = b"\x0a"
"""first byte of a trace: the tag of its first packet, which is a line end, too"""

_HARD = 0x08
"""of common_flags (include/linux/trace_events.h, TRACE_FLAG_HARDIRQ)"""

_PID_MASK = 0xFFFFFFFF


def is_trace(content: bytes) -> bool:
    """Tell whether a file's content is no text and may be a trace of Perfetto."""
    return content.startswith(_PACKET) and b"\0" in content[:100_000]


def parse(content: bytes) -> Events:
    """Return the switches and wakeups of a trace.

    Args:
        content: of the file.

    Raises:
        ValueError: it is no such trace, or cut off.
    """
    reader = _Reader()
    for bundle in _bundles(content):
        reader.read(bundle)
    return reader.events()


def _bundles(content: bytes) -> Iterator[FtraceEventBundle]:
    try:
        trace = Trace.FromString(content)
        for packet in trace.packet:
            if packet.HasField("compressed_packets"):
                yield from _bundles(zlib.decompress(packet.compressed_packets))
            elif packet.HasField("zstd_compressed_packets"):
                plain = zstandard.ZstdDecompressor().decompressobj().decompress(packet.zstd_compressed_packets)
                yield from _bundles(plain)
            elif packet.HasField("ftrace_events"):
                yield packet.ftrace_events
    except (DecodeError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(str(error)) from error


_Row = tuple[int, Kind, int | None, int, int, int]
"""ns, kind, the task that was running (none: not said), the task that it is about, value, priority"""


class _Reader:
    """Collects the rows of each CPU."""

    def __init__(self) -> None:
        self._names = Names()
        self._rows: dict[int, list[_Row]] = {}

    def read(self, bundle: FtraceEventBundle) -> None:
        rows = self._rows.setdefault(bundle.cpu, [])
        rows += self._plain(bundle)
        rows += self._switches(bundle.compact_sched)
        rows += self._wakings(bundle.compact_sched)

    def events(self) -> Events:
        """Return all rows in order of time."""
        return events.merge([_columns(cpu, rows) for cpu, rows in self._rows.items() if rows], self._names.comms())

    def _plain(self, bundle: FtraceEventBundle) -> Iterator[_Row]:
        for event in bundle.event:
            kind = event.WhichOneof("event")
            time, current = event.timestamp, event.pid & _PID_MASK
            about: Any = getattr(event, kind) if kind else None
            if kind == "sched_switch":
                self._names.add(about.prev_pid, time, about.prev_comm)
                self._names.add(about.next_pid, time, about.next_comm)
                yield time, Kind.SWITCH, about.prev_pid, about.next_pid, _state(about.prev_state), about.next_prio
            elif kind in ("sched_waking", "sched_wakeup", "sched_wakeup_new"):
                self._names.add(about.pid, time, about.comm)
                waker = events.INTERRUPT if event.common_flags & _HARD else current
                yield time, events.NAMES[kind], waker, about.pid, about.target_cpu, about.prio
            elif kind == "sched_process_fork":
                self._names.add(about.child_pid, time, about.child_comm)
                yield time, Kind.FORK, current, about.child_pid, 0, events.NO_PRIO
            elif kind == "sched_process_exit":
                yield time, Kind.EXIT, current, about.pid, 0, about.prio

    def _switches(self, compact: FtraceEventBundle.CompactSched) -> Iterator[_Row]:
        columns = zip(
            accumulate(compact.switch_timestamp),
            compact.switch_prev_state,
            compact.switch_next_pid,
            compact.switch_next_prio,
            self._comms(compact, compact.switch_next_comm_index),
            strict=True,
        )
        for time, state, pid, prio, comm in columns:
            self._names.add(pid, time, comm)
            yield time, Kind.SWITCH, None, pid, _state(state), prio

    def _wakings(self, compact: FtraceEventBundle.CompactSched) -> Iterator[_Row]:
        columns = zip(
            accumulate(compact.waking_timestamp),
            compact.waking_pid,
            compact.waking_target_cpu,
            compact.waking_prio,
            self._comms(compact, compact.waking_comm_index),
            compact.waking_common_flags or [0] * len(compact.waking_pid),
            strict=True,
        )
        for time, pid, cpu, prio, comm, flags in columns:
            self._names.add(pid, time, comm)
            yield time, Kind.WAKING, events.INTERRUPT if flags & _HARD else None, pid, cpu, prio

    def _comms(self, compact: FtraceEventBundle.CompactSched, indices: Iterable[int]) -> Iterator[str]:
        return (compact.intern_table[index] for index in indices)


def _columns(cpu: int, rows: list[_Row]) -> dict[str, Ints]:
    """Return one CPU's rows as columns; what runs between two switches is what the first went to."""
    rows.sort(key=lambda row: row[0])
    currents, running = [], 0
    for _, kind, current, pid, *_ in rows:
        currents.append(running if current is None else current)
        if kind is Kind.SWITCH:
            running = pid
    columns = [np.array(column, dtype=np.int64) for column in zip(*((*row[:2], *row[3:]) for row in rows), strict=True)]
    time, kinds, pid_column, value, prio = columns
    return {
        "time_ns": time,
        "cpu": np.full(len(rows), cpu, dtype=np.int64),
        "kind": kinds,
        "current": np.array(currents, dtype=np.int64),
        "pid": pid_column,
        "value": value,
        "prio": prio,
    }


def _state(value: int) -> int:
    """Return the bits of a `prev_state`; kernels before 4.14 say by a higher bit that the task was preempted."""
    return events.STATE_PREEMPTED if value >= events.STATE_PREEMPTED else value
