"""Both forms in which a kernel shows its tracepoints, from real guests and made up."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab.errors import HeddleError
from heddle_lab.measures import events, ftrace, ringbuffer
from heddle_lab.measures.events import Events, Kind
from tests.conftest import KERNELS
from tests.measures.reference import simulate

DATA = Path(__file__).parent / "data"
"""one boot each on four CPUs: a task with an awkward name sleeps, then `taskset -c 1,2 hackbench -g 1 -f 2`"""


@pytest.fixture(params=KERNELS)
def sample(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Text and binary of the same buffers."""
    return (DATA / f"{request.param}.txt").read_text(), (DATA / f"{request.param}.jsonl").read_text()


def test_the_binary_form_says_what_the_text_says_but_to_the_nanosecond(sample: tuple[str, str]) -> None:
    text, binary = ftrace.parse(sample[0]), ringbuffer.parse_block(sample[1], "sample")
    assert len(text) == len(binary) > 50
    assert text.comms == binary.comms
    assert text.cpus == binary.cpus == 4
    assert [text.masks[at] for at in text.value[text.where(Kind.AFFINITY)]] == [0b0110]
    assert [binary.masks[at] for at in binary.value[binary.where(Kind.AFFINITY)]] == [0b0110]
    # Rounded stamps are equal where exact ones differ, so that the order may differ between CPUs.
    for cpu in range(4):
        mine, its = np.flatnonzero(text.cpu == cpu), np.flatnonzero(binary.cpu == cpu)
        for name in ("kind", "current", "pid", "value", "prio"):
            assert getattr(text, name)[mine].tolist() == getattr(binary, name)[its].tolist(), name
        assert np.abs(text.time_ns[mine] - binary.time_ns[its]).max(initial=0) <= 500
    assert (binary.time_ns % 1000 != 0).any()


def test_a_name_may_look_like_the_format(sample: tuple[str, str]) -> None:
    parsed = ftrace.parse(sample[0])
    awkward = [pid for pid, comm in parsed.comms.items() if comm == "a b-7 [001] ="]
    assert awkward
    assert np.isin(parsed.current, awkward).any()


def test_the_tracepoint_that_nobody_measures_still_tells_who_ran(sample: tuple[str, str]) -> None:
    parsed = ringbuffer.parse_block(sample[1], "sample")
    other = parsed.where(Kind.OTHER)
    assert len(other)
    assert (parsed.pid[other] == parsed.current[other]).all()


@pytest.mark.parametrize(
    ("stamp", "time_ns"),
    [("    12.345678", 12_345_678_000), (" 2438229563", 2_438_229_563), ("     0.000001", 1_000)],
)
def test_stamps_are_microseconds_or_a_bare_count(stamp: str, time_ns: int) -> None:
    line = f"     x-1   (  12) [010] dNh2. {stamp}: sched_wakeup: comm=my app pid=7 prio=-1 target_cpu=003\n"
    parsed = ftrace.parse(line)
    assert (parsed.time_ns[0], parsed.cpu[0], parsed.pid[0], parsed.prio[0], parsed.value[0]) == (time_ns, 10, 7, -1, 3)
    assert parsed.comms[7] == "my app"


@pytest.mark.parametrize(("letters", "bits"), [("R", 0), ("R+", 0x100), ("S", 1), ("D|W", 2), ("X", 0x10), ("I", 0x80)])
def test_states_become_the_kernels_bits(letters: str, bits: int) -> None:
    line = (
        f"  a-1 [000] d..2. 1.000000: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state={letters} ==> "
        "next_comm=x ==> next_comm=y next_pid=2 next_prio=120\n"
    )
    parsed = ftrace.parse(line)
    assert parsed.value.tolist() == [bits]
    assert parsed.comms[2] == "x ==> next_comm=y"


def test_lines_that_are_no_events_are_skipped() -> None:
    text = "# tracer: nop\nCPU:0 [LOST 3 EVENTS]\n  a-1 [000] d..2. 1.000000: sched_switch: nonsense\n\n"
    parsed = ftrace.parse(text)
    assert parsed.kind.tolist() == [Kind.OTHER]


@given(st.integers(0, 2**80) | st.integers(0, 10**5), st.sampled_from([(ftrace.CPU, 8191), (ftrace.PID, 2**22)]))
def test_numbers_up_to_the_kernels_limits_are_known(number: int, limit: tuple[str, int]) -> None:
    pattern, most = limit
    for value in (number, most, most + 1, most - 1):
        assert bool(re.fullmatch(pattern, f"{value:03}")) == (value <= most)


def test_a_header_with_an_impossible_number_of_cpus_does_not_count() -> None:
    header = "# entries-in-buffer/entries-written: 1/1   #P:{}\n"
    line = "  a-1 [002] d..2. 1.000000: sched_wakeup: comm=b pid=7 prio=120 target_cpu=003\n"
    assert ftrace.parse(header.format(8) + line).cpus == 8
    assert ftrace.parse(header.format(10**12) + line).cpus == 3


def test_no_text_has_no_events() -> None:
    assert len(ftrace.parse("")) == 0


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
def test_text_of_any_events_is_read_back(seed: int, cpus: int, tasks: int) -> None:
    made = simulate(seed, cpus, tasks, 30).events()
    _same(ftrace.parse("".join(_lines(made)), cpus), made)


def _lines(made: Events) -> list[str]:
    states = {0: "R", 1: "S", 0x100: "R+"}
    lines = []
    for time, cpu, kind, current, pid, value, prio in zip(
        *(getattr(made, name).tolist() for name in events.COLUMNS), strict=True
    ):
        fields = {
            Kind.SWITCH: f"sched_switch: prev_comm={_comm(made, current)} prev_pid={current} prev_prio=120 "
            f"prev_state={states.get(value)} ==> next_comm={_comm(made, pid)} next_pid={pid} next_prio={prio}",
            Kind.WAKING: f"sched_waking: comm={_comm(made, pid)} pid={pid} prio={prio} target_cpu={value:03}",
            Kind.WAKEUP: f"sched_wakeup: comm={_comm(made, pid)} pid={pid} prio={prio} target_cpu={value:03}",
            Kind.AFFINITY: f"affinity: (x+0x4/0xc0) target={pid} mask={{{made.masks[value]:#x},0xffff}}"
            if kind == Kind.AFFINITY
            else "",
        }[Kind(kind)]
        stamp = f"{time // 10**9}.{time // 1000 % 10**6:06}"
        lines.append(f"{_comm(made, current):>16}-{current:<7} [{cpu:03}] d..2. {stamp}: {fields}\n")
    return lines


def _comm(made: Events, pid: int) -> str:
    return made.comms.get(pid, "swapper")


def _same(parsed: Events, made: Events) -> None:
    for name in ("time_ns", "cpu", "kind", "current", "pid"):
        assert getattr(parsed, name).tolist() == getattr(made, name).tolist(), name
    rows = made.where(Kind.SWITCH, Kind.WAKING, Kind.WAKEUP)
    assert parsed.value[rows].tolist() == made.value[rows].tolist()
    assert parsed.prio[rows].tolist() == made.prio[rows].tolist()
    rows = made.where(Kind.AFFINITY)
    assert [parsed.masks[at] for at in parsed.value[rows]] == [made.masks[at] for at in made.value[rows]]


WAKING = ringbuffer.parse_format(
    "name: sched_waking\nID: 311\nformat:\n"
    "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
    "\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n"
    "\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n"
    "\tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;\n"
    "\tfield:int target_cpu;\toffset:32;\tsize:4;\tsigned:1;\n"
)


class Pages:
    """Writes records as the kernel does (kernel/trace/ring_buffer.c)."""

    def __init__(self) -> None:
        self.done = b""
        self._page: bytearray | None = None
        self._last = 0

    def add(self, time: int, record: bytes, *, absolute: bool = False) -> None:
        delta = time - self._last if self._page is not None else 0
        head = b""
        if absolute:
            head = _words(31 | (time & 0x7FFFFFF) << 5, time >> 27 & 0xFFFFFFFF)
            delta = 0
        elif delta >= 1 << 27:
            head = _words(30 | (delta & 0x7FFFFFF) << 5, delta >> 27)
            delta = 0
        short = len(record) <= 28 * 4
        body = _words(len(record) // 4 | delta << 5) if short else _words(delta << 5, len(record) + 4)
        if self._page is None or len(self._page) + len(head) + len(body) + len(record) > ringbuffer.PAGE - 16:
            self.close()
            self._page = bytearray()
            self._stamp = self._last = time
            return self.add(time, record)
        self._page += head + body + record
        self._last = time
        return None

    def discard(self, length: int) -> None:
        """Leave a record that was reserved and thrown away."""
        if self._page is not None and len(self._page) + 4 + length <= ringbuffer.PAGE - 16:
            self._page += _words(29 | 1 << 5, length) + bytes(length - 4)
            self._last += 1

    def close(self) -> None:
        if self._page is not None:
            page = _words(self._stamp & 0xFFFFFFFF, self._stamp >> 32, len(self._page), 0) + self._page
            if len(page) < ringbuffer.PAGE:
                page += _words(29)
            self.done += page.ljust(ringbuffer.PAGE, b"\xff")
            self._page = None


def _words(*words: int) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


records = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 5000), st.integers(1 << 26, 1 << 40)),
        st.integers(1, 2**22),
        st.sampled_from([0, 0, 0, 100]),
        st.sampled_from(["plain", "plain", "plain", "absolute", "discard"]),
    ),
    max_size=400,
)


@given(st.integers(0, 2**50), records)
def test_any_page_is_read_back(start: int, made: list[tuple[int, int, int, str]]) -> None:
    pages, expected, time = Pages(), [], start
    for delta, pid, padding, how in made:
        time += delta
        record = _words(311, 42) + b"name".ljust(16, b"\0") + _words(pid, 120, 3) + bytes(padding)
        pages.add(time, record, absolute=how == "absolute")
        expected.append((time, pid))
        if how == "discard":
            pages.discard(24)
            time = max(time, time + 1)
    pages.close()
    parsed = ringbuffer.parse({2: pages.done}, [WAKING])
    assert list(zip(parsed.time_ns.tolist(), parsed.pid.tolist(), strict=True)) == expected
    assert set(parsed.kind.tolist()) <= {Kind.WAKING}
    assert set(parsed.current.tolist()) <= {42}
    assert set(parsed.value.tolist()) <= {3}
    assert parsed.cpus == 3


def test_lost_events_are_an_error_that_names_the_mend() -> None:
    block = json.dumps({"step": "s", "cpus": 1, "lost": 7, "formats": []}) + '\n{"end": "s"}\n'
    with pytest.raises(HeddleError, match="step 's': 7 trace events were lost; raise the trace's buffer_kb"):
        ringbuffer.parse_block(block, "s")


def test_a_step_without_a_binary_trace_is_an_error() -> None:
    with pytest.raises(HeddleError, match="step 'other' has no binary trace"):
        ringbuffer.parse_block('{"step": "s", "cpus": 1, "lost": 0}\n', "other")


def test_only_the_wanted_step_is_read(sample: tuple[str, str]) -> None:
    other = json.dumps({"step": "other", "cpus": 1, "lost": 0, "formats": []})
    page = json.dumps({"cpu": 0, "pages": base64.b64encode(bytes(ringbuffer.PAGE)).decode()})
    text = "\n".join([other, page, '{"end": "other"}', sample[1], other, page, '{"end": "other"}'])
    whole = ringbuffer.parse_block(sample[1], "sample")
    assert ringbuffer.parse_block(text, "sample").time_ns.tolist() == whole.time_ns.tolist()
    assert len(ringbuffer.parse_block(text, "other")) == 0


def test_a_damaged_format_is_an_error() -> None:
    with pytest.raises(HeddleError, match="no name or no ID"):
        ringbuffer.parse_format("field:int pid;")
