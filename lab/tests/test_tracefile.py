"""Files of recorders: each kind shows the same, and what cannot be read is one line."""

import gzip
import lzma
import zlib
from pathlib import Path

import pytest
import zstandard
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from heddle_lab import recording, tracefile
from heddle_lab.errors import HeddleError
from heddle_lab.measures import perfetto
from heddle_lab.measures.events import Events, Kind
from tests.test_recording import ping_pong

COLUMNS = ("time_ns", "cpu", "kind", "current", "pid", "value", "prio")


def told(events: Events) -> list[list[int]]:
    """Return the columns of switches and wakeups."""
    rows = events.where(Kind.SWITCH, Kind.WAKING)
    return [getattr(events, column)[rows].tolist() for column in COLUMNS]


@pytest.fixture
def events() -> Events:
    return tracefile.of_text(ping_pong(20, "ftrace"), "x").events


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, lzma.compress, zstandard.ZstdCompressor(write_content_size=False).compress]
)
def test_text_may_be_compressed(tmp_path: Path, pack: "type[bytes]", events: Events) -> None:
    file = tmp_path / "trace"
    file.write_bytes(pack(ping_pong(20, "ftrace").encode()))
    assert told(tracefile.read(file).events) == told(events)
    packed = file.read_bytes()
    if pack is not bytes:
        file.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(HeddleError, match=r"trace: cannot be unpacked: |trace: no sched_switch events"):
            recording.of_trace(tracefile.read(file), "trace")


def compact(plain: bytes) -> bytes:
    """Return a trace of Perfetto in its compact form, as the recorder writes it."""
    trace, packed = Trace.FromString(plain), Trace()
    for packet in trace.packet:
        if not packet.HasField("ftrace_events"):
            continue
        bundle = packed.packet.add().ftrace_events
        bundle.cpu = packet.ftrace_events.cpu
        sched, last = bundle.compact_sched, {"switch": 0, "waking": 0}
        for event in packet.ftrace_events.event:
            kind = event.WhichOneof("event").removeprefix("sched_")
            about = getattr(event, f"sched_{kind}")
            comm, pid, prio = (
                getattr(about, f"{'next_' if kind == 'switch' else ''}{name}") for name in ("comm", "pid", "prio")
            )
            if comm not in sched.intern_table:
                sched.intern_table.append(comm)
            row = {"timestamp": event.timestamp - last[kind], "comm_index": list(sched.intern_table).index(comm)}
            last[kind] = event.timestamp
            next_ = "next_" if kind == "switch" else ""
            row = {"timestamp": row["timestamp"], f"{next_}comm_index": row["comm_index"]}
            row |= {f"{next_}pid": pid, f"{next_}prio": prio}
            row |= {"prev_state": about.prev_state} if kind == "switch" else {"target_cpu": about.target_cpu}
            for name, value in row.items():
                getattr(sched, f"{kind}_{name}").append(value)
    data: bytes = packed.SerializeToString()
    return data


def wrapped(plain: bytes) -> bytes:
    """Return a trace of Perfetto whose packets are compressed."""
    outer = Trace()
    outer.packet.add().compressed_packets = zlib.compress(plain)
    data: bytes = outer.SerializeToString()
    return data


@pytest.mark.parametrize("form", [bytes, compact, wrapped])
def test_traces_of_perfetto_are_read(tmp_path: Path, form: "type[bytes]", events: Events) -> None:
    file = tmp_path / "trace.perfetto-trace"
    file.write_bytes(form(perfetto.encode(events)))
    found = tracefile.read(file)
    assert told(found.events) == told(events)
    assert {pid: found.events.comms[pid] for pid in (11, 12)} == {11: "ping/1", 12: "pong:7"}
    load, plain = (recording.of_trace(tracefile.Trace(one, []), "x") for one in (found.events, events))
    assert recording.workload(load, "w", "") == recording.workload(plain, "w", "")


def test_a_trace_that_is_cut_off_is_refused(tmp_path: Path, events: Events) -> None:
    file = tmp_path / "trace.perfetto-trace"
    file.write_bytes(perfetto.encode(events)[:-7])
    with pytest.raises(HeddleError, match="neither text nor a whole trace of perf, trace-cmd or Perfetto"):
        tracefile.read(file)


@pytest.mark.parametrize(
    ("content", "package", "command"),
    [
        (b"PERFILE2\x68\0\0\0", "linux-perf", "perf script -f -i"),
        (b"\x17\x08\x44tracing6\0", "trace-cmd", "trace-cmd report -t -i"),
    ],
)
def test_without_its_program_a_binary_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, package: str, command: str
) -> None:
    file = tmp_path / "recorded"
    file.write_bytes(content)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HeddleError) as error:
        tracefile.read(file)
    assert f"install {package}, or run `{command} recorded > trace.txt` on the recorded machine" in str(error.value)


@pytest.mark.parametrize(
    ("content", "name"), [(b"PERFILE2\x68\0\0\0", "perf"), (b"\x17\x08\x44tracing6\0", "trace-cmd")]
)
def test_the_program_of_a_recorder_makes_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, name: str, events: Events
) -> None:
    """The program is a stand-in that prints a text, or fails as the real one does for a damaged file."""
    file, program = tmp_path / "recorded", tmp_path / name
    file.write_bytes(content)
    (tmp_path / "text").write_text(ping_pong(20, "ftrace"))
    program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/text\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told(tracefile.read(file).events) == told(events)
    program.write_text("#!/bin/sh\necho incompatible file format >&2\nexit 1\n")
    with pytest.raises(HeddleError, match=f"recorded: {name} cannot read it: incompatible file format"):
        tracefile.read(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"none.txt: No such file or directory"):
        tracefile.read(tmp_path / "none.txt")
