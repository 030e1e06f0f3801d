"""From the text of a trace to a workload that plays the same."""

import dataclasses
import re
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from heddle_lab import (
    cli,
    fidelity,
    kernels,
    machine,
    recording,
    rehearsal,
    script,
    selection,
    tasks,
    tomlfile,
    tracefile,
    workload,
)
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
    assert [(group.name, group.tasks, group.parts) for group in found.groups] == [("ping", 1, 0), ("pong", 1, 0)]
    assert set(ping.runs_ns.tolist()) == {100 * US}
    assert set(pong.runs_ns.tolist()) == {50 * US}
    assert set(ping.sleeps_ns.tolist()) == {(1000 - 102) * US}
    assert (ping.woken, pong.woken) == (0, 1)
    first, second = found.tasks
    assert (first.first_waker, second.first_waker) == (tasks.NOBODY, first.pid)
    assert [(wake.run, wake.spent_ns, wake.woken) for wake in first.wakes[:2]] == [(0, 88 * US, 12), (1, 88 * US, 12)]
    assert second.wakes == []
    assert found.cpus == 2
    assert found.wakeups == pytest.approx(2000, rel=0.02)
    assert found.switches == pytest.approx(2000, rel=0.02)
    assert found.utilisation == pytest.approx(0.075, rel=0.02)
    assert found.concurrency.mean() == pytest.approx(0.158, rel=0.02)


def test_all_styles_say_the_same() -> None:
    columns = []
    for style in STYLES:
        events = ftrace.parse(perfscript.read(ping_pong(5, style)).ftrace)
        columns.append([events.time_ns.tolist(), events.kind.tolist(), events.current.tolist(), events.value.tolist()])
    assert columns[0] == columns[1] == columns[2]


Steps = list[tuple[str, int]]
KINDS = ("run", "wake", "wait", "sleep", "until", "forever")


def steps(content: bytes) -> dict[str, Steps]:
    """Return the steps of each task of a script by its name, and under an empty name what the others say of it."""
    rest = iter(content)

    def number() -> int:
        value = shift = 0
        for byte in rest:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return value

    found: dict[str, Steps] = {"": [("length", number())]}
    for _ in range(number()):
        name = bytes(next(rest) for _ in range(number())).decode()
        found[""] += [(key, number()) for key in ("prio", "component", "span", "cpu", "runs")]
        found[name] = [(KINDS[number()], number()) for _ in range(number())]
    assert next(rest, None) is None
    return found


def played(found: recording.Load) -> dict[str, Steps]:
    """Return the steps of a load's script."""
    return steps(script.encode(found.tasks, found.duration_ns))


def test_a_sleep_that_a_task_ends_waits_for_it_and_all_others_for_the_time() -> None:
    found = recording.read(ping_pong(50, "perf"), "x")
    steps_of = played(found)
    ping = [("run", 88 * US), ("wake", 1), ("run", 12 * US)]
    # The timer is periodic: the times at which it wakes vary less than the lengths of the sleeps.
    assert steps_of["ping/1"][:5] == [("until", 2 * US), *ping, ("sleep", 898 * US)]
    assert steps_of["pong:7"][:3] == [("wait", 0), ("run", 50 * US), ("wait", 0)]
    assert steps_of[""] == [
        *[("length", found.duration_ns), ("prio", 120), ("component", 0), ("span", 49_100 * US), ("cpu", 5_000 * US)],
        *[("runs", 49), ("prio", 120), ("component", 0), ("span", 49_050 * US), ("cpu", 2_500 * US), ("runs", 49)],
    ]


def test_the_workload_says_what_was_found(tmp_path: Path) -> None:
    found = recording.read(ping_pong(50, "perf"), "x")
    path = tmp_path / "mine.toml"
    path.write_text(recording.workload(found, "mine", 'a "laptop"', stretch=2))
    load = workload.load(str(path))

    def argv(**params: float) -> list[str] | None:
        return load.job_steps(load.parameters(dict(params)), machine.load("smp-4"), seed=7)[0].argv

    # Four CPUs are given what two had, twice.
    assert argv() == ["heddle-replay", "/heddle/replay", "--copies", "2.0", "--stretch", "2.0"]
    assert argv(load=0.75, trace_cpus=4, stretch=1.0) == [*argv()[:3], "0.75", "--stretch", "1.0"]
    assert load.summary == "2 tasks in 2 groups, recorded for 0.0491 s on 2 CPUs"
    assert tomllib.loads(path.read_text())["source"] == 'a "laptop"'
    assert load.contents.keys() == {"/heddle/replay"}
    load = load.model_copy(update={"programs": []})
    assert load.guest_files() == {"/heddle/replay": (0o644, script.encode(found.tasks, found.duration_ns))}
    damaged = load.model_copy(update={"contents": {"/heddle/replay": "AAAA"}})
    with pytest.raises(HeddleError, match=r"workload 'mine': contents: /heddle/replay: .*: record it again"):
        damaged.guest_files()


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
        assert any(task.wakes for task in found.tasks)


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
    ).replace("on 2 CPUs", "on 8192 CPUs").replace("default = 2\n", "default = 8192\n")
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
        load = workload.load(str(file)).model_copy(update={"programs": []})
    [(_, content)] = load.guest_files().values()
    assert name in content
    assert sorted(mine.name for mine in recording.read(text, "x").groups) == sorted([group, "pong"])


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


def test_tasks_begin_and_end_when_they_did() -> None:
    found = recording.read(trace(short_lived(6), 6800 * MS), "x")
    [group] = found.groups
    assert (group.name, group.tasks, group.parts) == ("burst", 6, 6)
    assert found.switches == pytest.approx(6 * 35 / 6.8)
    assert found.utilisation == pytest.approx(6 * 35 * 0.2 / (2 * 6800), rel=1e-3)
    steps_of = played(found)
    assert steps_of["burst/2"][:2] == [("until", 3040 * MS), ("run", 200 * US)]
    assert steps_of["burst/2"].count(("run", 200 * US)) == 35
    assert steps_of["burst/2"][-1] == ("run", 200 * US)


def test_a_task_that_is_born_waits_for_its_parent() -> None:
    parent = [(0, at * MS, (at + 4) * MS, "make", 7, "S") for at in range(50, 1000, 100)]
    text = trace([*parent, (1, 152 * MS, 160 * MS, "cc", 8, "X")], 1000 * MS)
    born = " make-7 [000] d..2. 0.151000: sched_wakeup_new: comm=cc pid=8 prio=120 target_cpu=001"
    lines = [line for line in text.splitlines() if "sched_waking: comm=cc pid=8" not in line]
    at = next(number for number, line in enumerate(lines) if " 0.152" in line)
    steps_of = played(recording.read("\n".join([*lines[:at], born, *lines[at:]]), "x"))
    assert steps_of["cc"] == [("wait", 0), ("run", 8 * MS)]
    assert steps_of["make"][3:7] == [("run", 1 * MS), ("wake", 1), ("run", 3 * MS), ("sleep", 96 * MS)]


def test_a_period_is_kept_and_a_pause_is_a_pause() -> None:
    lengths = [3, 9, 1, 7, 2, 8, 4, 6, 5, 3, 9, 1]
    period = [(0, at * 20 * MS, (at * 20 + length) * MS, "period", 7, "S") for at, length in enumerate(lengths, 1)]
    pause, at = [], 5
    for length in lengths:
        pause.append((1, at * MS, (at + length) * MS, "pause", 8, "S"))
        at += length + 10
    steps_of = played(recording.read(trace([*period, *pause], 1000 * MS), "x"))
    assert steps_of["period"][:4] == [("until", 20 * MS), ("run", 3 * MS), ("until", 40 * MS), ("run", 9 * MS)]
    assert steps_of["pause"][:4] == [("until", 5 * MS), ("run", 3 * MS), ("sleep", 10 * MS), ("run", 9 * MS)]


def test_tasks_that_never_sleep_are_kept() -> None:
    hog = [(1, at * MS, (at + 4) * MS, "hog", 8, "R+") for at in range(0, 996, 4)]
    daemon = [(0, at * MS, at * MS + 300 * US, "hog/2", 7, "S") for at in range(50, 1000, 100)]
    found = recording.read(trace([*hog, *daemon], 1000 * MS), "x")
    asleep, busy = found.groups
    assert (asleep.name, asleep.tasks, busy.name, busy.tasks) == ("hog", 1, "hog", 1)
    assert len(busy.sleeps_ns) == 0
    assert busy.runs_ns.tolist() == [pytest.approx(1000 * MS, rel=0.01)]
    assert found.utilisation == pytest.approx((1000 + 10 * 0.3) / 2000, rel=0.01)
    assert busy.row()[-1] == "never sleep"
    steps_of = played(found)
    assert steps_of["hog"] == [("until", 0), ("forever", 0)]
    assert ("runs", 996) in steps_of[""]


def test_interrupts_that_come_while_a_task_runs_are_not_its_wakeups() -> None:
    """A task is woken every millisecond, while a CPU idles or another one runs; that one computes, or sleeps too."""
    for state in ("R+", "S"):
        lines = []
        for at in range(100):
            busy = [(0, (at * 10 + 2) * MS, (at * 10 + 6) * MS, "busy", 8, state)]
            lines += [
                *busy,
                *((1, (at * 10 + part) * MS, (at * 10 + part) * MS + 100 * US, "tick", 7, "S") for part in range(10)),
            ]
        text = trace(lines, 1000 * MS)
        by_busy = re.sub(
            r" swapper-0 \[001\] (d..2. \S+([2345])\d{5}: sched_waking: comm=\S+ pid=7)", r" busy-8 [000] \1", text
        )
        assert text != by_busy
        [tick] = [task for task in recording.read(by_busy, "x").tasks if task.pid == 7]
        assert set(tick.wakers.tolist()) == {tasks.NOBODY}


@pytest.mark.parametrize(
    ("flags", "waker"), [("d.h2.", tasks.NOBODY), ("dNH2.", tasks.NOBODY), ("d.s2.", 11), ("d..2.", 11)]
)
def test_a_hardware_interrupt_wakes_not_the_task_that_it_interrupts(flags: str, waker: int) -> None:
    text = re.sub(r"(ping/1-11 .*) d..2. (\S+ sched_waking)", rf"\1 {flags} \2", ping_pong(50, "ftrace"))
    [_, pong] = recording.read(text, "x").tasks
    assert set(pong.wakers.tolist()) == {waker}


def test_a_part_of_a_trace_is_kept() -> None:
    trace_of = tracefile.of_text(ping_pong(50, "ftrace"), "x")
    found = recording.of_trace(trace_of, "x", span=recording.Span(10 * MS, 20 * MS))
    assert found.duration_ns == 20 * MS
    assert [len(group.runs_ns) for group in found.groups] == [20, 20]
    assert found.wakeups == pytest.approx(2000, rel=0.06)
    with pytest.raises(HeddleError, match=r"x: it ends after 49.143 ms: choose an earlier --from-ms"):
        recording.of_trace(trace_of, "x", span=recording.Span(50 * MS))


@pytest.mark.parametrize(
    ("only", "exclude", "kept"),
    [
        (["pong"], [], ["pong"]),
        (["p*g:7", "11"], [], ["ping", "pong"]),
        ([], ["ping"], ["pong"]),
        (["12"], [], ["pong"]),
        (["/user.slice"], [], ["ping"]),
        ([], ["/user.slice/a"], ["pong"]),
        (["/"], ["pong"], ["ping"]),
    ],
)
def test_tasks_are_chosen_by_name_pid_and_cgroup(
    only: list[str], exclude: list[str], kept: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "cgroups.txt"
    file.write_text("/proc/1/task/11/cgroup:0::/user.slice/a\n/proc/12/task/12/cgroup:0::/user\n/proc/1/x:1\n")
    wanted = selection.Selection(tuple(only), tuple(exclude), selection.cgroups(file))
    found = recording.of_trace(tracefile.of_text(ping_pong(50, "ftrace"), "x"), "x", wanted)
    assert [group.name for group in found.groups] == kept
    assert (found.left_out > 0) == (len(kept) == 1)
    if kept == ["pong"]:  # its waker is not there
        assert found.groups[0].woken == 0


def test_a_choice_that_cannot_be_made(tmp_path: Path) -> None:
    some = tracefile.of_text(ping_pong(50, "ftrace"), "x")
    with pytest.raises(HeddleError, match=r"x: --only and --exclude keep no task; the trace has ping, pong"):
        recording.of_trace(some, "x", selection.Selection(only=("mysql",)))
    with pytest.raises(HeddleError, match=r"x: /a: a trace does not say which task is in which cgroup: .* --cgroups"):
        recording.of_trace(some, "x", selection.Selection(exclude=("/a",)))
    with pytest.raises(HeddleError, match=r"cgroups.txt: No such file"):
        selection.cgroups(tmp_path / "cgroups.txt")
    (tmp_path / "cgroups.txt").write_text("0::/\n")
    with pytest.raises(HeddleError, match=r"cgroups.txt: no line such as /proc/1/task/1/cgroup"):
        selection.cgroups(tmp_path / "cgroups.txt")


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
        ({}, {"runs_ns": 3}, "run length, median 75 µs -> 225 µs (+200.0 %; at most 50 %)"),
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
    target.write_text(target.read_text().replace("default = 1.0", "default = 1.5", 1))
    assert workload.load(str(target)).mismatch().startswith("the file was changed after it was compared")
    assert workload.load("hackbench").mismatch() == ""


def test_few_switches_are_no_fault() -> None:
    """Hogs hardly switch, which is chance."""
    found = dataclasses.replace(recording.read(trace(short_lived(6), 6800 * MS), "x"), switches=1000.0)
    few = fidelity.FEW * found.cpus
    for apart, named in ((100 + few - 0.1, []), (100 + few + 0.1, ["switches"])):
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
    with pytest.raises(HeddleError, match="the trace has 385 CPUs, and a machine at most 384: name a smaller machine"):
        rehearsal.box_of(385)


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file, target = tmp_path / "trace.txt", tmp_path / "none" / "x.toml"
    file.write_text(ping_pong(50, "ftrace"))
    done = CliRunner().invoke(cli.cli, ["record", str(file), "--out", str(target), "--no-check"], standalone_mode=False)
    complaint = f"cannot write {target}: no folder {target.parent}; make it, or name another file by --out"
    assert str(done.exception) == complaint
    assert not target.parent.exists()
