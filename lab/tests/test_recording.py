"""From the text of a trace to a workload that plays the same."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from heddle_lab import cli, fidelity, kernels, machine, recording, rehearsal, tomlfile, workload
from heddle_lab.errors import HeddleError
from heddle_lab.measures import ftrace, perfscript, timeline

US = 1_000


def ping_pong(rounds: int, style: str, name: str = "ping/1") -> str:
    """Two tasks on a CPU each: a timer wakes `ping` every millisecond, which runs 100 us and wakes `pong` for 50 us."""
    lines = []

    def at(ns: int, cpu: int, comm: str, pid: int, event: str, kernel: str, short: str) -> None:
        stamp = f"{ns // 10**9}.{ns % 10**9 // 1000:06d}"
        if style == "ftrace":
            lines.append(f" {comm}-{pid} [{cpu:03d}] d..2. {stamp}: {event}: {kernel}")
        elif style == "perf":
            lines.append(f"{comm:>16} {pid:>5} [{cpu:03d}] {stamp}:       sched:{event}: {kernel}")
        else:
            lines.append(f"{comm:>16}-{pid:<5} [{cpu:03d}] {stamp}: {event}: {short}")

    def switch(ns: int, cpu: int, left: tuple[str, int], state: str, right: tuple[str, int]) -> None:
        kernel = (
            f"prev_comm={left[0]} prev_pid={left[1]} prev_prio=120 prev_state={state} ==> "
            f"next_comm={right[0]} next_pid={right[1]} next_prio=120"
        )
        short = f"{left[0]}:{left[1]} [120] {state} ==> {right[0]}:{right[1]} [120]"
        at(ns, cpu, *left, "sched_switch", kernel, short)

    def wake(ns: int, cpu: int, waker: tuple[str, int], woken: tuple[str, int], target: int) -> None:
        kernel = f"comm={woken[0]} pid={woken[1]} prio=120 target_cpu={target:03d}"
        at(ns, cpu, *waker, "sched_waking", kernel, f"{woken[0]}:{woken[1]} [120] CPU:{target:03d}")

    ping, pong = (name, 11), ("pong:7", 12)
    idle = [("swapper/0", 0), ("swapper/1", 0)]
    for number in range(rounds):
        start = 10**9 + number * 1000 * US
        wake(start, 0, idle[0], ping, 0)
        switch(start + 2 * US, 0, idle[0], "R", ping)
        wake(start + 90 * US, 0, ping, pong, 1)
        switch(start + 93 * US, 1, idle[1], "R", pong)
        switch(start + 102 * US, 0, ping, "S", idle[0])
        switch(start + 143 * US, 1, pong, "S", idle[1])
    return "\n".join(lines) + "\n"


STYLES = ("ftrace", "perf", "short")


@pytest.mark.parametrize("style", STYLES)
def test_runs_sleeps_and_who_wakes_whom(style: str) -> None:
    found = recording.read(ping_pong(50, style), "x")
    ping, pong = found.groups
    assert [(group.name, group.tasks, group.nice) for group in found.groups] == [("ping", 1, 0), ("pong", 1, 0)]
    assert set(ping.runs_ns.tolist()) == {100 * US}
    assert set(pong.runs_ns.tolist()) == {50 * US}
    assert set(ping.sleeps_ns.tolist()) == {(1000 - 102) * US}
    assert (ping.woken, pong.woken) == (0, 1)
    assert ping.wakes == pytest.approx([0, 1], abs=0.03)
    assert pong.wakes == [0, 0]
    assert found.cpus == 2
    assert found.wakeups == pytest.approx(2000, rel=0.02)
    assert found.switches == pytest.approx(2000, rel=0.02)
    assert found.utilisation == pytest.approx(0.075, rel=0.02)


def test_all_styles_say_the_same() -> None:
    columns = []
    for style in STYLES:
        events = ftrace.parse(perfscript.read(ping_pong(5, style)).ftrace)
        columns.append([events.time_ns.tolist(), events.kind.tolist(), events.current.tolist(), events.value.tolist()])
    assert columns[0] == columns[1] == columns[2]


def test_the_workload_says_what_was_found(tmp_path: Path) -> None:
    found = recording.read(ping_pong(50, "perf"), "x")
    path = tmp_path / "mine.toml"
    path.write_text(recording.workload(found, "mine", 'a "laptop"'))
    load = workload.load(str(path))
    step = load.job_steps(load.parameters({}), machine.load("smp-4"), seed=7)[0]
    timing = ["--warm-up-ms", "200", "--for-ms", "500"]
    assert step.argv == ["heddle-load", "replay", *timing, "--seed", "7"]
    assert step.stdin is not None
    ping, pong = json.loads(step.stdin)["groups"]
    assert (ping["name"], ping["tasks"], pong["woken"]) == ("ping", 1, 1.0)
    assert set(ping["runs_insns"]) == {100 * US}
    assert len(ping["sleeps_ns"]) >= 2
    assert tomllib.loads(path.read_text())["source"] == 'a "laptop"'


def test_a_perfect_replay_is_not_apart() -> None:
    found = recording.read(ping_pong(50, "ftrace"), "x")
    rows = fidelity.compare(found, found)
    assert [(row.apart, row.matches) for row in rows] == [(0, True)] * 6
    twice = dataclasses.replace(found, switches=found.switches * 2)
    [switches] = [row for row in fidelity.compare(found, twice) if not row.matches]
    assert (switches.what, switches.row()[3]) == ("switches", "+100.0 %")


def test_real_traces_are_read() -> None:
    for name in ("6.18", "7.3"):
        text = (Path(__file__).parent / "measures" / "data" / f"{name}.txt").read_text()
        found = recording.read(text, name)
        assert "hackbench" in {group.name for group in found.groups}
        assert all((np.diff(group.runs_ns) >= 0).all() for group in found.groups)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "x: no sched_switch events"),
        (
            "\n".join(line for line in ping_pong(3, "perf").splitlines() if "switch" in line),
            "x: no sched_wakeup events",
        ),
        (
            ping_pong(3, "perf").replace("ping/1", "kworker").replace("pong:7", "rcu_gp"),
            "x: only threads of the kernel",
        ),
        (ping_pong(3, "perf").replace("==> ", ""), "x: 12 lines not understood, first: 'swapper/0     0 "),
        (ping_pong(3, "perf").replace(" pid=", " tid="), "x: 6 lines not understood, first: 'swapper/0     0 "),
    ],
)
def test_traces_that_do_not_suffice(text: str, complaint: str) -> None:
    with pytest.raises(HeddleError, match=complaint):
        recording.read(text, "x")


PLAIN = {"head": 11, "cpu": 0, "seconds": 2, "pid": 12, "prio": 120, "other": 0}
MOST = {"head": 2**22, "cpu": 8191, "seconds": 9_223_372_035, "pid": 2**22, "prio": 139, "other": 8191}
"""the largest numbers that a kernel can give; `other` is a CPU in a wakeup, a priority in a switch"""


def numbered(style: str, event: str, numbers: dict[str, int]) -> str:
    """One event with given numbers, after those of a few rounds of `ping_pong`."""
    head, cpu, seconds, pid, prio, other = numbers.values()
    if event == "sched_switch":
        kernel = f"prev_comm=a prev_pid={head} prev_prio={other} prev_state=S ==> "
        kernel += f"next_comm=b next_pid={pid} next_prio={prio}"
        short = f"a:{head} [{other}] S ==> b:{pid} [{prio}]"
    else:
        kernel = f"comm=b pid={pid} prio={prio} target_cpu={other:03d}"
        short = f"b:{pid} [{prio}] CPU:{other:03d}"
    gap, system, fields = {"ftrace": ("-", "", kernel), "perf": (" ", "sched:", kernel), "short": ("-", "", short)}[
        style
    ]
    return f"   a{gap}{head} [{cpu:03d}] {seconds}.000000: {system}{event}: {fields}\n"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("event", ["sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new"])
@given(st.sampled_from(list(MOST)), st.integers(1) | st.integers(10**4, 10**30))
def test_numbers_that_no_kernel_gives_are_not_understood(style: str, event: str, which: str, beyond: int) -> None:
    before = ping_pong(3, style)
    most = MOST | ({"other": 139} if event == "sched_switch" else {})
    line = numbered(style, event, PLAIN | {which: most[which] + beyond})
    found = recording.read(before + line, "x")
    assert (found.unread, found.first_unread) == (1, line.rstrip("\n"))
    assert recording.workload(found, "w", "") == recording.workload(recording.read(before, "x"), "w", "")
    assert recording.read(before + numbered(style, event, most), "x").unread == 0


def test_cpus_that_show_nothing_cost_nothing() -> None:
    """The number of CPUs is the highest one's, but only CPUs with events have a timeline."""
    text = ping_pong(20, "ftrace").replace("[001]", "[8191]")
    found = recording.read(text, "x")
    assert found.cpus == 8192
    assert recording.workload(found, "w", "") == recording.workload(
        recording.read(ping_pong(20, "ftrace"), "x"), "w", ""
    ).replace("on 2 CPUs", "on 8192 CPUs")
    events = ftrace.parse(perfscript.read(text).ftrace)
    assert set(timeline.build(events, silent=False).runs.cpu.tolist()) == {0, 8191}
    assert set(timeline.build(events).runs.cpu.tolist()) == set(range(8192))


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("garbage sched_switch", 1),
        ("  a 42 [000] sched:sched_switch: a:42 [120] S ==> b:43 [120]", 1),
        ("  a-42 [000] d..2. sched_wakeup: comm=b pid=43 prio=120 target_cpu=000", 1),
        ("  a 42 [000] inf: sched:sched_waking: comm=b pid=43 prio=120 target_cpu=000", 1),
        ("  a 42 [000] 1.000001: sched:sched_switch: a\0:42 [120] S ==> b:43 [120]", 1),
        ("# perf sched record -e sched_switch", 0),
        ("  a 42 [000] 1.000001: sched:sched_stat_runtime: comm=sched_switch pid=42 runtime=1 [ns]", 0),
        ("  a 42 [000] 1.000001: syscalls:sys_enter_prctl: name: sched_switch", 0),
        (" ffffffff8110 __traceiter_sched_switch+0x42 ([kernel.kallsyms])", 0),
        (" " * 10**6 + "x", 0),
        ("sched_switch: " + "prev_comm= prev_pid=1 prev_prio=1 prev_state=S ==> next_comm=" * 10**4, 1),
    ],
)
def test_lines_that_should_be_events_are_counted(line: str, unread: int) -> None:
    found = recording.read(f"{line}\n{ping_pong(3, 'perf')}", "x")
    assert found.unread == unread
    assert line.startswith(found.first_unread)


@pytest.mark.parametrize("style", STYLES)
def test_a_clock_that_goes_back_is_refused(style: str) -> None:
    text = ping_pong(5, style)
    lines = len(text.splitlines())
    complaint = rf"x: line {lines + 1}: the clock of CPU 0 goes back from 1\.004102 to 1\.0 s: give one recording"
    with pytest.raises(HeddleError, match=complaint):
        recording.read(text + text, "x")


@given(st.permutations(range(2 * 4)))
def test_cpus_may_come_in_any_order(order: list[int]) -> None:
    """Tools merge what the CPUs recorded, perf by rounds: each CPU's events are in order, not those of all."""
    lines = ping_pong(4, "perf").splitlines()
    of_cpu = [iter([line for line in lines if f"[{cpu:03d}]" in line]) for cpu in (0, 1)]
    mixed = [line for turn in order for line in of_cpu[turn % 2]][: len(lines)]
    found, expected = (recording.read("\n".join(some), "x") for some in (mixed, lines))
    assert recording.workload(found, "w", "") == recording.workload(expected, "w", "")


PARTS = ["'" * 3, "{% endraw %}", "{% raw %}", "\x1b[31m", ":1 [1] S ==> b", " pid=7", "-1 [0] 5: x: ", "\\u0041"]
PARTS += ["{{", "}}", "{%", "%}", "{#", "#}", *"'\"\\{} =a0/\n\r\x7f\x85\u2028é😀"]
NAMES = st.binary(max_size=15) | st.lists(st.sampled_from(PARTS)).map(lambda parts: "".join(parts).encode()[:15])


@pytest.mark.parametrize("style", STYLES)
@given(NAMES)
def test_any_name_comes_back(style: str, name: bytes) -> None:
    name = name.replace(b"\0", b"")
    if style == "short":
        name = name.lstrip(b" ")  # the tool's own spaces are before it
    text = ping_pong(4, style, name.decode("utf-8", "surrogateescape"))
    shown = name.decode("utf-8", "backslashreplace")
    group = re.sub(r"[\d/:._#-]+\Z", "", shown) or shown
    assume(group != "pong")
    with TemporaryDirectory() as folder:
        trace, file = Path(folder) / "trace.txt", Path(folder) / "w.toml"
        trace.write_bytes(text.encode("utf-8", "surrogateescape"))
        done = CliRunner().invoke(
            cli.cli, ["record", str(trace), "--out", str(file), "--no-check"], standalone_mode=False
        )
        assert done.exception is None
        assert "not understood" not in done.output
        assert all(character.isprintable() or character == "\n" for character in done.output)
        load = workload.load(str(file))
    step = load.job_steps(load.parameters({}), machine.load("smp-4"), seed=1)[0]
    assert step.stdin is not None
    assert sorted(mine["name"] for mine in json.loads(step.stdin)["groups"]) == sorted([group, "pong"])


@given(st.text())
def test_any_text_is_a_toml_string(text: str) -> None:
    assert tomllib.loads(f"a = {tomlfile.string(text)}") == {"a": text}


def test_a_text_of_bytes_that_are_no_utf_8_is_a_toml_string() -> None:
    assert tomllib.loads(f"a = {tomlfile.string('x' + chr(0xDCFF))}") == {"a": "x\\udcff"}


MS = 1_000_000

Run = tuple[int, int, int, str, int, str]
"""CPU, begin and end in ns, name, pid, state in which the run ends"""


def trace(runs: list[Run], length_ns: int) -> str:
    """Return the text of a trace in which tasks run at given times; each run begins with a wakeup by a timer.

    Before and after all runs, a thread of the kernel shows the ends of the trace.
    """
    ends = [(0, 0, 1000, "kworker/0:1", 9, "S"), (0, length_ns - 1000, length_ns, "kworker/0:1", 9, "S")]
    lines: list[tuple[int, int, str, int, str, str, int]] = []
    last = dict.fromkeys((0, 1), (0, "swapper", 0, "R"))
    for cpu, begin, end, comm, pid, state in sorted([*runs, *ends], key=lambda run: run[1]):
        before, *left = last[cpu]
        if before < begin and left[1]:  # the CPU idles between
            lines.append((before, cpu, *left, "swapper", 0))
            left = ["swapper", 0, "R"]
        lines.append((begin, cpu, *left, comm, pid))
        last[cpu] = (end, comm, pid, state)
    lines += [(end, cpu, comm, pid, state, "swapper", 0) for cpu, (end, comm, pid, state) in last.items() if pid]
    text = []
    for at, cpu, comm, pid, state, other, next_pid in sorted(lines, key=lambda line: line[0]):
        head = f" {comm}-{pid} [{cpu:03d}] d..2. {at // 10**9}.{at % 10**9 // 1000:06d}: "
        if next_pid:
            text.append(f"{head}sched_waking: comm={other} pid={next_pid} prio=120 target_cpu={cpu:03d}")
        text.append(
            f"{head}sched_switch: prev_comm={comm} prev_pid={pid} prev_prio=120 prev_state={state} ==> "
            f"next_comm={other} next_pid={next_pid} next_prio=120"
        )
    return "\n".join(text) + "\n"


def short_lived(count: int) -> list[Run]:
    """Threads that live 35 ms: 35 runs of 200 us, one each millisecond; two at a time, one after another."""
    return [
        (number % 2, start, start + 200 * US, f"burst/{number}", 100 + number, "X" if turn == 34 else "S")
        for number in range(count)
        for turn in range(35)
        for start in [3000 * MS + number // 2 * 40 * MS + turn * MS]
    ]


def played(found: recording.Load, tmp_path: Path) -> tuple[int, int, list[dict[str, Any]]]:
    """Return how long the workload plays before and while it is measured, ms, and the groups of the replay."""
    path = tmp_path / "w.toml"
    path.write_text(recording.workload(found, "w", ""))
    load = workload.load(str(path))
    step = load.job_steps(load.parameters({}), machine.load("smp-4"), seed=1)[0]
    assert step.argv is not None
    assert step.stdin is not None
    return int(step.argv[3]), int(step.argv[5]), json.loads(step.stdin)["groups"]


def test_tasks_count_for_the_time_that_they_live(tmp_path: Path) -> None:
    found = recording.read(trace(short_lived(6), 6800 * MS), "x")
    [group] = found.groups
    assert (group.name, group.tasks, group.parts(found.duration_ns)) == ("burst", 6, 6)
    assert group.lives[0] == (3000 * MS, 3034 * MS + 200 * US)
    assert found.switches == pytest.approx(6 * 35 / 6.8)
    assert found.utilisation == pytest.approx(6 * 35 * 0.2 / (2 * 6800), rel=1e-3)
    warm_up_ms, for_ms, [mine] = played(found, tmp_path)
    assert (warm_up_ms, for_ms) == (0, 6800)
    # Two threads live all six lives.
    assert mine["tasks"] == 2
    assert sorted(mine["lives_ns"]) == [[time for life in group.lives[side::2] for time in life] for side in (0, 1)]


def test_a_task_that_sleeps_at_the_ends_of_the_trace_lives_through_it(tmp_path: Path) -> None:
    daemon = [(0, at * MS, at * MS + 300 * US, "daemon", 7, "S") for at in range(50, 1000, 100)]
    found = recording.read(trace(daemon, 1000 * MS), "x")
    assert found.groups[0].lives == [(0, found.duration_ns)]
    warm_up_ms, for_ms, [mine] = played(found, tmp_path)
    assert (warm_up_ms, for_ms) == (200, 500)
    assert "lives_ns" not in mine


def test_a_brief_life_near_the_begin_of_a_trace_is_not_stretched_to_it() -> None:
    """Five wakeups in a tenth of a millisecond: stretched over 5 ms, they would be hundreds."""
    busy = [(0, 5 * MS + at * 20 * US, 5 * MS + (at * 20 + 5) * US, "brief", 7, "S") for at in range(5)]
    hog = [(1, at * MS, (at + 4) * MS, "hog", 8, "R+") for at in range(0, 996, 4)]
    found = recording.read(trace([*busy, *hog], 1000 * MS), "x")
    [brief] = [group for group in found.groups if group.name == "brief"]
    assert brief.lives == [(5 * MS, 5 * MS + 85 * US)]


def test_tasks_that_never_sleep_are_kept(tmp_path: Path) -> None:
    hog = [(1, at * MS, (at + 4) * MS, "hog", 8, "R+") for at in range(0, 996, 4)]
    daemon = [(0, at * MS, at * MS + 300 * US, "hog", 7, "S") for at in range(50, 1000, 100)]
    found = recording.read(trace([*hog, *daemon], 1000 * MS), "x")
    asleep, busy = found.groups
    assert (asleep.name, asleep.tasks, busy.name, busy.tasks) == ("hog", 1, "hog", 1)
    assert len(busy.sleeps_ns) == 0
    assert busy.runs_ns.tolist() == [pytest.approx(1000 * MS, rel=0.01)]
    assert found.utilisation == pytest.approx((1000 + 10 * 0.3) / 2000, rel=0.01)
    assert found.row(busy)[-1] == "never sleep"
    *_, groups = played(found, tmp_path)
    assert [group["sleeps_ns"] == [] for group in groups] == [False, True]


def test_what_is_not_understood_is_counted_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ping_pong(20, "perf").splitlines()
    raw = lines[1].replace("==> ", "")
    file = tmp_path / "trace.txt"
    file.write_text("\n".join([raw, *lines, raw, "# sched_switch: a comment", "no event"]))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.cli, ["record", "trace.txt", "--no-check"], standalone_mode=False)
    assert done.exception is None
    assert f"heddle: trace.txt: 2 lines not understood, first: {raw.strip()!r}\n" in done.output
    file.write_text("\n".join([raw, *lines]))
    assert "heddle: trace.txt: 1 line not" in CliRunner().invoke(cli.cli, ["record", "trace.txt", "--no-check"]).output
    file.write_text("\n".join(lines))
    assert (
        "not understood"
        not in CliRunner().invoke(cli.cli, ["record", "trace.txt", "--no-check"], standalone_mode=False).output
    )


@pytest.mark.parametrize(
    ("rates", "lengths", "complaint"),
    [
        ({"switches": 1.09, "wakeups": 0.91, "utilisation": 1.09}, {"runs_ns": 1.4}, ""),
        ({"switches": 15.6}, {}, "switches 2"),
        ({"utilisation": 3.0}, {}, " % (+200.0 %; at most "),
        ({"wakeups": 0.7, "switches": 0.7}, {}, "(−30.0 %; at most "),
        ({}, {"runs_ns": 3}, "run length, median 10"),
        ({}, {"sleeps_ns": 0}, "sleep length, median"),
        ({"concurrency": 30.0}, {}, "tasks at a time 0.1"),
    ],
)
def test_a_replay_that_is_far_from_its_trace_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], lengths: dict[str, float], complaint: str
) -> None:
    file, target = tmp_path / "trace.txt", tmp_path / "trace.toml"
    file.write_text(ping_pong(50, "ftrace"))
    found = recording.read(file.read_text(), "x")
    groups = [
        dataclasses.replace(group, **{name: (getattr(group, name) * by).astype(int) for name, by in lengths.items()})
        for group in found.groups
    ]
    other = dataclasses.replace(found, groups=groups, **{name: getattr(found, name) * by for name, by in rates.items()})
    monkeypatch.setattr(rehearsal, "replay", lambda *_: other)
    monkeypatch.setattr(kernels, "find", lambda name: SimpleNamespace(name=name))
    done = CliRunner().invoke(cli.cli, ["record", str(file)], standalone_mode=False)
    assert done.exception is None
    assert done.return_value == bool(complaint)
    mismatch = workload.load(str(target)).mismatch()
    assert bool(mismatch) == bool(complaint)
    assert complaint in mismatch
    assert mismatch in done.output


def test_what_was_not_compared_or_was_changed_since_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, target = tmp_path / "trace.txt", tmp_path / "trace.toml"
    file.write_text(ping_pong(50, "ftrace"))
    CliRunner().invoke(cli.cli, ["record", str(file), "--no-check"], standalone_mode=False)
    never = "it was never compared with its trace: record it again without --no-check"
    assert workload.load(str(target)).mismatch() == never
    target.write_text(target.read_text().replace("\n[fidelity]\n", ""))
    assert workload.load(str(target)).mismatch() == never
    found = recording.read(file.read_text(), "x")
    monkeypatch.setattr(rehearsal, "replay", lambda *_: found)
    monkeypatch.setattr(kernels, "find", lambda name: SimpleNamespace(name=name))
    CliRunner().invoke(cli.cli, ["record", str(file)], standalone_mode=False)
    load = workload.load(str(target))
    assert load.mismatch() == ""
    assert load.fidelity is not None
    assert load.fidelity.summary().endswith("(on smp-2, Linux 7.3)")
    target.write_text(target.read_text().replace('"tasks":1', '"tasks":2', 1))
    assert workload.load(str(target)).mismatch().startswith("the file was changed after it was compared")
    assert workload.load("hackbench").mismatch() == ""


def test_the_start_of_threads_and_few_switches_are_no_fault() -> None:
    """Hogs hardly switch, which is chance; and the threads of their replay have to start."""
    short = recording.read(trace(short_lived(6), 6800 * MS), "x")
    assert short.threads == 2
    found = dataclasses.replace(short, switches=1000.0)
    few, begun = fidelity.FEW * found.cpus, fidelity.START * 2 / 6.8
    for apart, named in ((100 + few + begun - 0.1, []), (100 + few + begun + 0.1, ["switches"])):
        for sign in (-1, 1):
            other = dataclasses.replace(found, switches=1000 + sign * apart)
            assert [row.what for row in fidelity.compare(found, other) if not row.matches] == named
    idle = dataclasses.replace(found, switches=0.0)
    assert all(row.matches for row in fidelity.compare(idle, dataclasses.replace(idle, switches=0.0 + few)))


def test_a_machine_of_another_size_than_the_trace_is_named() -> None:
    found = recording.read(ping_pong(50, "ftrace"), "x")
    of_two = "; smp-4 has 4 CPUs and the trace 2 CPUs: leave --check out, or name a machine of 2 CPUs"
    assert fidelity.other_size(found, 4, "smp-4") == of_two
    assert fidelity.other_size(found, 2, "x") == ""


def test_a_machine_has_as_many_cpus_as_the_trace() -> None:
    assert rehearsal.box_of(4).fingerprint() == machine.load("smp-4").fingerprint()
    assert (rehearsal.box_of(37).cpus, rehearsal.box_of(37).name) == (37, "smp-37")
    with pytest.raises(HeddleError, match="the trace has 256 CPUs, and a machine at most 255: name a smaller machine"):
        rehearsal.box_of(256)


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file, target = tmp_path / "trace.txt", tmp_path / "none" / "x.toml"
    file.write_text(ping_pong(50, "ftrace"))
    done = CliRunner().invoke(cli.cli, ["record", str(file), "--out", str(target), "--no-check"], standalone_mode=False)
    complaint = f"cannot write {target}: no folder {target.parent}; make it, or name another file by --out"
    assert str(done.exception) == complaint
    assert not target.parent.exists()


def test_partial_lives_are_explained_where_there_are_some(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    for text, explained in ((trace(short_lived(6), 6800 * MS), True), (ping_pong(50, "ftrace"), False)):
        file.write_text(text)
        done = CliRunner().invoke(cli.cli, ["record", str(file), "--no-check"], standalone_mode=False)
        assert done.exception is None
        assert (recording.PARTS in done.output) == explained
