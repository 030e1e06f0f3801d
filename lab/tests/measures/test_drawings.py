"""What people look at: the file for Perfetto and the SVG, read back."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from heddle_lab.measures import drawing, perfetto, timeline
from heddle_lab.measures.events import Kind
from heddle_lab.measures.switches import Place
from heddle_lab.measures.timeline import Timeline
from tests.measures.reference import TICK_NS, Truth, simulate


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=30)
def test_perfettos_own_reader_finds_every_switch_and_wakeup(seed: int, cpus: int, tasks: int) -> None:
    events = simulate(seed, cpus, tasks, 40).events()
    trace = Trace.FromString(perfetto.encode(events, "7.3.4"))
    assert trace.packet[0].system_info.utsname.release == "7.3.4"
    assert trace.packet[0].system_info.num_cpus == cpus
    found = []
    for packet in trace.packet[1:]:
        bundle = packet.ftrace_events
        assert [event.timestamp for event in bundle.event] == sorted(event.timestamp for event in bundle.event)
        for event in bundle.event:
            if event.HasField("sched_switch"):
                switch = event.sched_switch
                assert switch.next_comm == (f"task {switch.next_pid}" if switch.next_pid else f"swapper/{bundle.cpu}")
                assert switch.prev_pid == event.pid
                found.append((event.timestamp, bundle.cpu, Kind.SWITCH, event.pid, switch.next_pid, switch.prev_state))
            else:
                kind = Kind.WAKING if event.HasField("sched_waking") else Kind.WAKEUP
                woken = getattr(event, f"sched_{kind.name.lower()}")
                found.append((event.timestamp, bundle.cpu, kind, event.pid, woken.pid, woken.target_cpu))
    kept = events.where(Kind.SWITCH, Kind.WAKING, Kind.WAKEUP)
    columns = (events.time_ns, events.cpu, events.kind, events.current, events.pid, events.value)
    assert sorted(found) == sorted(zip(*(column[kept].tolist() for column in columns), strict=True))


def built(truth: Truth) -> Timeline:
    return timeline.build(truth.events(), start_ns=0, end_ns=truth.ticks * TICK_NS, cpus=truth.cpus, skew_ns=0)


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    """Return all elements of a kind; the picture must be well-formed."""
    parser = ElementTree.XMLPullParser(["start"])
    parser.feed(svg)
    parser.close()
    found = [element for _, element in parser.read_events() if isinstance(element, ElementTree.Element)]
    return [element for element in found if element.tag == f"{{http://www.w3.org/2000/svg}}{tag}"]


def area(svg: str) -> dict[float, float]:
    """Return the width of all coloured bars in each row, by the row's y, weighted with their shade."""
    rows: dict[float, float] = {}
    for path in elements(svg, "path"):
        if path.get("fill", "").startswith("hsl"):
            shade = float(path.get("fill-opacity", "1"))
            for top, width in re.findall(r"M[\d.]+ ([\d.]+)h(\d+)v", path.get("d", "")):
                rows[float(top)] = rows.get(float(top), 0.0) + int(width) * shade
    return rows


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 9), st.integers(1, 50))
@settings(max_examples=40)
def test_the_coloured_area_of_a_row_is_the_busy_time_of_its_cpu(seed: int, cpus: int, tasks: int, ticks: int) -> None:
    truth = simulate(seed, cpus, tasks, ticks)
    drawn = area(drawing.svg(built(truth), 0, ticks * TICK_NS))
    busy = [sum(row[cpu] != 0 for row in truth.running) for cpu in range(cpus)]
    expected = [ticks_busy / ticks * 1000 for ticks_busy in busy if ticks_busy]
    # A column at the edge of a run may be shaded a step too dark.
    switches = [sum(a[c] != b[c] for a, b in pairwise(truth.running)) for c in range(cpus)]
    assert [width for _, width in sorted(drawn.items())] == pytest.approx(
        expected, abs=max(switches, default=0) / 2 + 2
    )


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 9), st.integers(1, 50))
@settings(max_examples=40)
def test_the_chart_below_shows_how_many_tasks_wait(seed: int, cpus: int, tasks: int, ticks: int) -> None:
    truth = simulate(seed, cpus, tasks, ticks)
    level = drawing.waiting_level(built(truth), 0, ticks * TICK_NS, ticks)
    assert level.tolist() == pytest.approx([len(waiting) for waiting in truth.waiting], abs=1e-6)


@pytest.mark.parametrize("cpus", [1, 16, 192])
def test_every_machine_gets_readable_rows_inside_the_picture(cpus: int) -> None:
    where = {cpu: Place(cpu, cpu // 8, 0) for cpu in range(cpus)}
    picture = drawing.svg(built(simulate(1, cpus, 2 * cpus, 20)), 5 * TICK_NS, 15 * TICK_NS, where)
    width, height = map(float, elements(picture, "svg")[0].get("viewBox", "").split()[2:])
    labels = [text for text in elements(picture, "text") if text.get("text-anchor") == "end"]
    numbers = [text for text in labels if (text.text or "").isdigit()]
    assert numbers[0].text == "0"
    tops = [float(text.get("y", "")) for text in numbers]
    assert all(below - above >= 10 for above, below in pairwise(tops))
    assert max(tops) < height <= 1000
    for x, y, right in re.findall(r"M([\d.]+) ([\d.]+)h(\d+)v", picture):
        assert float(x) + float(right) <= width
        assert float(y) < height


def test_names_of_tasks_cannot_break_the_picture() -> None:
    line = built(simulate(2, 1, 1, 30))
    line.comms[100] = "<a&b>"
    texts = elements(drawing.svg(line, 0, line.end_ns), "text")
    assert any((text.text or "").startswith("<a&b>") for text in texts)


def test_an_interval_without_any_task_is_drawn_empty() -> None:
    truth = simulate(1, 2, 1, 1)
    truth.rows.clear()
    assert area(drawing.svg(built(truth), 0, 1_000)) == {}
