"""From the text of a trace to a workload that plays the same."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from heddle_lab import machine, recording, workload
from heddle_lab.errors import HeddleError
from heddle_lab.measures import ftrace, perfscript

US = 1_000


def ping_pong(rounds: int, style: str) -> str:
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

    ping, pong = ("ping/1", 11), ("pong:7", 12)
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
        events = ftrace.parse(perfscript.to_ftrace(ping_pong(5, style)))
        columns.append([events.time_ns.tolist(), events.kind.tolist(), events.current.tolist(), events.value.tolist()])
    assert columns[0] == columns[1] == columns[2]


def test_the_workload_says_what_was_found(tmp_path: Path) -> None:
    found = recording.read(ping_pong(50, "perf"), "x")
    path = tmp_path / "mine.toml"
    path.write_text(recording.workload(found, "mine", 'a "laptop"'))
    load = workload.load(str(path))
    step = load.job_steps(load.parameters({}), machine.load("smp-4"), seed=7)[0]
    assert step.argv == ["heddle-load", "replay", "--for-ms", "500", "--seed", "7"]
    assert step.stdin is not None
    ping, pong = json.loads(step.stdin)["groups"]
    assert (ping["name"], ping["tasks"], pong["woken"]) == ("ping", 1, 1.0)
    assert set(ping["runs_insns"]) == {100 * US}
    assert len(ping["sleeps_ns"]) >= 2
    assert tomllib.loads(path.read_text())["source"] == 'a "laptop"'


def test_a_perfect_replay_is_not_apart() -> None:
    found = recording.read(ping_pong(50, "ftrace"), "x")
    rows = recording.fidelity(found, found)
    assert [row[3] for row in rows] == ["±0.0 %"] * 4 + ["0.000"]
    twice = recording.read(ping_pong(50, "ftrace").replace("ping", "song"), "x")
    longer = recording.Load(**{**vars(twice), "switches": twice.switches * 2})
    assert recording.fidelity(found, longer)[1][3] == "+100.0 %"


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
        (ping_pong(1, "perf"), "x: no task sleeps and runs again"),
    ],
)
def test_traces_that_do_not_suffice(text: str, complaint: str) -> None:
    with pytest.raises(HeddleError, match=complaint):
        recording.read(text, "x")
