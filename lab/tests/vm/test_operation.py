"""What an administrator does with scx_heddle: configure, check, watch, scrape; from a root shell in the guest."""

import re

import pyte
import pytest
from prometheus_client.openmetrics import parser

from heddle_lab.job import CgroupSet, SchedulerStop, Sleep, Step
from heddle_lab.results import Results
from tests.conftest import Boot
from tests.vm.machines import slow

PROGRAM = "/usr/local/bin/scx_heddle"
MS = 1_000_000
PORT = 9464

CONFIG = f"metrics = {PORT}\nslice-us = 2000\n"
WRONG = "slice-us = 2000\nwakeqq = 'off'\n"

CAPABILITIES = {12: "CAP_NET_ADMIN", 34: "CAP_SYSLOG", 38: "CAP_PERFMON", 39: "CAP_BPF"}
"""capabilities(7), linux/capability.h"""

COLUMNS, LINES = 100, 40
SMALL_COLUMNS, SMALL_LINES = 60, 20


def get(name: str, path: str) -> Step:
    request = f"exec 3<>/dev/tcp/127.0.0.1/{PORT}; printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    return Step(name=name, argv=["bash", "-c", request])


VIEW = f"""
stty cols {COLUMNS} rows {LINES}
{PROGRAM} --monitor 0.2 &
sleep 1; printf BIG; stty cols {SMALL_COLUMNS} rows {SMALL_LINES}; sleep 1; kill -TERM $!; wait $!
"""
"""on a pseudo-terminal that socat makes"""


@pytest.fixture(scope="module")
def operated(boot_once: Boot, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One boot with a scheduler that is configured by a file, under a load."""
    load = Step(name="load", argv=["hackbench", "-g", "1", "-f", "4", "-l", "4000"], background=True)
    quota = CgroupSet(cgroup="deep/down/limited", file="cpu.max", value="5000 10000")
    hog = ["heddle-load", "spin", "--threads", "1", "--for-ms", "8000"]
    steps = [
        Step(name="quota", action=quota),
        Step(name="limited", argv=hog, cgroup=quota.cgroup, background=True),
        load,
        get("first scrape", "/metrics"),
        Step(name="a while", action=Sleep(ns=200 * MS)),
        get("second scrape", "/metrics"),
        get("elsewhere", "/"),
        Step(name="listening", argv=["sh", "-c", "cat /proc/net/tcp*"]),
        Step(name="counters", argv=[PROGRAM, "--help-stats"]),
        Step(name="status", argv=["sh", "-c", "cat /proc/$(pgrep -x scx_heddle)/task/*/status"]),
        Step(name="lines", argv=["timeout", "--preserve-status", "1", PROGRAM, "--monitor", "0.2"]),
        Step(name="view", argv=["sh", "-c", "sleep 3 | socat - 'EXEC:sh /etc/view.sh,pty,setsid,ctty'"]),
        Step(name="check beside another", argv=[PROGRAM, "--check"], expect_exit=1),
        Step(name="end", action=SchedulerStop()),
        Step(name="check", argv=[PROGRAM, "--check"]),
        Step(name="check as a user", argv=[PROGRAM, "--check"], uid=1000, expect_exit=1),
        Step(name="wrong", argv=[PROGRAM, "--config", "/etc/wrong.toml"], expect_exit=1),
        Step(name="absent", argv=[PROGRAM, "--config", "/etc/absent.toml"], expect_exit=1),
        Step(
            name="without a capability",
            argv=["setpriv", "--bounding-set", "-bpf", PROGRAM],
            expect_exit=1,
        ),
    ]
    texts = {"/etc/heddle.toml": CONFIG, "/etc/wrong.toml": WRONG, "/etc/view.sh": VIEW}
    files = {path: (0o644, text.encode()) for path, text in texts.items()}
    machine = slow(tmp_path_factory.mktemp("machine"), "cores = 4", speed=25)
    sched = "operated=scx_heddle --config /etc/heddle.toml"
    return boot_once(steps, machine=machine, sched=sched, layers=["socat"], files=files).check()


def scraped(results: Results, step: str) -> dict[str, float]:
    """Return the counters of a scrape, all LLCs together, by their names."""
    head, _, body = results.step(step).stdout.partition("\r\n\r\n")
    assert " 200 " in head.splitlines()[0]
    assert "application/openmetrics-text" in head
    families = {family.name: family for family in parser.text_string_to_metric_families(body)}
    assert families.pop("heddle_build").type == "info"
    assert all(family.type == "counter" and family.documentation for family in families.values())
    return {name.removeprefix("heddle_"): sum(s.value for s in one.samples) for name, one in families.items()}


def test_prometheus_reads_the_counters(operated: Results) -> None:
    first, second = scraped(operated, "first scrape"), scraped(operated, "second scrape")
    documented = [line.split()[0] for line in operated.step("counters").stdout.splitlines()]
    assert list(first) == documented
    assert all(first[name] <= second[name] for name in documented)
    assert first["queued"] < second["queued"]
    assert " 404 " in operated.step("elsewhere").stdout.splitlines()[0]


def test_metrics_are_served_on_the_loopback_address_only(operated: Results) -> None:
    """proc(5): the local address is the second field, in hexadecimal, a listener's state is 0A."""
    sockets = [line.split() for line in operated.step("listening").stdout.splitlines()]
    listeners = [words[1] for words in sockets if words[3:4] == ["0A"]]
    assert listeners == [f"0100007F:{PORT:04X}"]


def test_the_loader_keeps_what_loading_takes_and_no_more(operated: Results) -> None:
    status = operated.step("status").stdout
    needed = f"{sum(1 << bit for bit in CAPABILITIES):016x}"
    for held in ("CapEff", "CapPrm"):
        assert set(re.findall(rf"^{held}:\t(\w+)$", status, re.MULTILINE)) == {needed}
    assert set(re.findall(r"^CapAmb:\t(\w+)$", status, re.MULTILINE)) == {"0" * 16}
    assert set(re.findall(r"^NoNewPrivs:\t(\d)$", status, re.MULTILINE)) == {"1"}


def test_what_is_no_terminal_gets_lines(operated: Results) -> None:
    lines = operated.step("lines").stdout.splitlines()
    assert len(lines) >= 3
    assert all(re.fullmatch(r"(\w+ \d+  )*\w+ \d+", line) for line in lines)


def screen(text: str, columns: int, lines: int) -> list[str]:
    """Return what a terminal of a size shows in the end."""
    shown = pyte.Screen(columns, lines)
    pyte.Stream(shown).feed(text.partition("\x1b[?1049l")[0])
    return [str(line) for line in shown.display]


def test_the_view_fits_the_terminal_and_follows_its_size(operated: Results) -> None:
    big, small = operated.step("view").stdout.split("BIG")
    before, after = screen(big, COLUMNS, LINES), screen(small, SMALL_COLUMNS, SMALL_LINES)
    assert before[0].startswith("scx_heddle")
    assert "4 CPUs" in before[0]
    assert any(re.search(r"queued +\d+", line) for line in before)
    assert after[0].startswith("scx_heddle")
    assert {line[0] for line in before[1:] if line.strip()} <= set("┌│└")
    assert any(line.rstrip().endswith("┐") and len(line.rstrip()) == SMALL_COLUMNS for line in after)


def test_the_view_names_the_group_that_is_throttled(operated: Results) -> None:
    """It is far down the tree and has half a CPU: the program tells its number only (usage.rs)."""
    lines = screen(operated.step("view").stdout.partition("BIG")[0], COLUMNS, LINES)
    found = [re.match(r"│ *(\S+) +100 +(\d+)% +deep/down/limited ", line) for line in lines]
    [(cpus, throttled)] = [row.groups() for row in found if row]
    assert 0.3 < float(cpus) < 0.7
    assert 30 < int(throttled) < 70


def test_the_check_tells_what_is_missing(operated: Results) -> None:
    fine = operated.step("check").stdout.splitlines()
    assert {line.split()[0] for line in fine} <= {"ok", "without"}
    beside = operated.step("check beside another").stdout
    assert re.search(r"^missing  no other scheduler: .*heddle", beside, re.MULTILINE)
    assert "\nmissing  root: " in operated.step("check as a user").stdout


def one_line(results: Results, step: str) -> str:
    [line] = results.step(step).stderr.splitlines()
    return line


def test_mistakes_are_one_line_with_file_and_key(operated: Results) -> None:
    assert one_line(operated, "wrong").startswith('scx_heddle: /etc/wrong.toml: "wakeqq": no such key')
    assert "/etc/absent.toml" in one_line(operated, "absent")
    assert one_line(operated, "without a capability") == "scx_heddle: loading a scheduler needs CAP_BPF"
