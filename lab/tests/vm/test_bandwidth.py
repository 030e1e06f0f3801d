"""cpu.max of scx_heddle, seen on a real kernel: what groups use, by the kernel's own accounts."""

import json
from operator import sub
from pathlib import Path
from statistics import median

import pytest

from heddle_lab import scheduler
from heddle_lab.job import (
    CgroupSet,
    KillStep,
    Read,
    SchedulerCommand,
    SchedulerStart,
    SchedulerStop,
    Sleep,
    Step,
    WaitStep,
)
from heddle_lab.results import Results
from tests.conftest import Boot, Record
from tests.vm.counting import PROGRAM, counted, counters
from tests.vm.machines import slow
from tests.vm.readers import grace_periods, longest_ms, lookups
from tests.vm.shares import CGROUPS, HEDDLE, MS, usage_usec

QUOTAS = [(5, 20), (5, 100), *((percent, period_ms) for percent in (10, 50, 150, 400) for period_ms in (10, 100))]
"""percent of a CPU, ms; the kernel takes no quota below a millisecond"""

QUOTA_ERROR = 0.02
"""of the quota"""

OVERDRAWN = 0.005
"""the same: what is noticed late at an edge of a window is owed, and made up for in the next"""

SETTLE_MS = 500
LIMITED_MS = 2000

QUOTAS_MS = 4000
"""whole periods of all groups: then it does not matter where in a period it begins"""

READ_MS = 1
"""about what a step takes on the slow machine"""

WATCHING = f"{HEDDLE}={HEDDLE} --cpu-max watch"
"""as on kernels before 6.17, which do not tell schedulers of cpu.max"""

WAYS = pytest.mark.parametrize("sched", [HEDDLE, WATCHING])


def limit(group: str, quota: float | None, period_ms: int = 100, burst: float = 0) -> list[Step]:
    """Limit a group to a number of CPUs; none: lift the limit."""
    us = 1000 * period_ms
    value = "max" if quota is None else f"{round(quota * us)} {us}"
    steps = [Step(name=f"{group} max {value}", action=CgroupSet(cgroup=group, file="cpu.max", value=value))]
    if burst:
        action = CgroupSet(cgroup=group, file="cpu.max.burst", value=str(round(burst * us)))
        steps.append(Step(name=f"{group} burst", action=action))
    return steps


def spin(group: str, threads: int, for_ms: int) -> Step:
    argv = ["heddle-load", "spin", "--threads", str(threads), "--for-ms", str(for_ms)]
    return Step(name=f"load {group}", argv=argv, cgroup=group, background=True)


def sleep(name: str, ms: int) -> Step:
    return Step(name=name, action=Sleep(ns=ms * MS))


def wait(group: str) -> Step:
    return Step(name=f"wait {group}", action=WaitStep(step=f"load {group}"))


def read(group: str, when: str) -> Step:
    return Step(name=f"{group} {when}", action=Read(path=f"{CGROUPS}/{group}/cpu.stat"))


def used_ms(results: Results, group: str, since: str, until: str) -> float:
    """CPU time of a group between two `read`s."""
    return (usage_usec(results, f"{group} {until}") - usage_usec(results, f"{group} {since}")) / 1000


def window_ms(results: Results, group: str) -> float:
    """Time from one `read` of a group to the next."""
    since, until = (results.step(f"{group} {when}").virtual_ns for when in ("settled", "limited"))
    return (until - since) / MS


def error(period: int) -> float:
    """Return what may be missed of a quota.

    The window may hold the beginning of one period more than its length, and what is overdrawn at its edges.
    """
    return max(QUOTA_ERROR, period / QUOTAS_MS + OVERDRAWN)


@WAYS
@pytest.mark.every_kernel
def test_groups_use_their_quotas(boot: Boot, sched: str, tmp_path: Path, record_property: Record) -> None:
    """P7: all quotas at once on CPUs enough for all, one of a group within another's; then one is lifted."""
    quotas = {f"q{percent}p{period}": (percent / 100, period) for percent, period in QUOTAS}
    quotas |= {"outer": (1.0, 20), "outer/inner": (0.3, 10)}
    lifted, lifted_ms = "q5p100", 500
    loads = {group: int(quota) + 2 for group, (quota, _) in quotas.items() if group != "outer"}
    loads["outer/free"] = 1  # leaves the inner group its quota in each of its periods
    steps = [step for group, (quota, period) in quotas.items() for step in limit(group, quota, period)]
    for_ms = SETTLE_MS + QUOTAS_MS + lifted_ms + 500
    steps += [spin(group, threads, for_ms) for group, threads in loads.items()]
    steps += [sleep("settle", SETTLE_MS), *(read(group, "settled") for group in quotas)]
    steps += [sleep("limited", QUOTAS_MS - READ_MS * len(quotas)), *(read(group, "limited") for group in quotas)]
    steps += [*limit(lifted, None), sleep("lifted", lifted_ms), read(lifted, "lifted")]
    steps += [wait(group) for group in loads]
    results = boot(steps, machine=slow(tmp_path, "dies = 2, cores = 8"), sched=sched).check()
    used = {group: used_ms(results, group, "settled", "limited") / window_ms(results, group) for group in quotas}
    record_property(
        f"CPU time over quota on {boot.kernel}, {sched}",
        {group: round(used[group] / quota, 4) for group, (quota, _) in quotas.items()},
    )
    assert used == {group: pytest.approx(quota, rel=error(period)) for group, (quota, period) in quotas.items()}
    # Both of its threads, on the CPUs that nobody else may use.
    assert used_ms(results, lifted, "limited", "lifted") > 0.95 * loads[lifted] * lifted_ms


def test_limits_are_kept_up_with(boot: Boot, tmp_path: Path) -> None:
    """A limit is changed, lifted and set while its group runs, outlives the scheduler, and is lost with its group."""
    group, span_ms = "kept", 1000
    # For longer than a restart takes where the verifier is slow; it is killed.
    load = spin(group, 2, 200_000).model_copy(update={"timeout_ns": 240_000 * MS})
    parts = {
        "set before it runs": ([*limit(group, 0.5, 20), load], 0.5),
        "changed": (limit(group, 0.2, 10), 0.2),
        "lifted": (limit(group, None), 2.0),
        "set as it runs": (limit(group, 0.3, 20), 0.3),
        "restarted": ([Step(name="stop", action=SchedulerStop()), Step(name="start", action=SchedulerStart())], 0.3),
    }
    steps: list[Step] = []
    for name, (change, _) in parts.items():
        steps += [*change, sleep(f"{name}: settle", 100), read(group, f"{name}: since")]
        steps += [sleep(name, span_ms), read(group, f"{name}: until")]
    steps.append(Step(name="kill", action=KillStep(step=f"load {group}")))
    results = boot(steps, machine=slow(tmp_path, "cores = 4"), sched=WATCHING).check()
    used = {part: used_ms(results, group, f"{part}: since", f"{part}: until") / span_ms for part in parts}
    assert used == {part: pytest.approx(cpus, rel=0.04) for part, (_, cpus) in parts.items()}


def test_groups_that_come_and_go_have_their_own_limits(boot: Boot, tmp_path: Path) -> None:
    """A group in the place of one that had a limit, its slot included, has none until it is set."""
    again, window_ms = "again", 400
    made: list[Step] = []
    for number, quota in enumerate((0.2, None, 0.4)):
        made += limit(again, quota, 20) if quota else []
        made += [spin(again, 2, window_ms + 150).model_copy(update={"name": f"load {number}"})]
        made += [sleep(f"settle {number}", 60), read(again, f"since {number}")]
        made += [sleep(f"run {number}", window_ms), read(again, f"until {number}")]
        made += [Step(name=f"wait {number}", action=WaitStep(step=f"load {number}"))]
        made += [Step(name=f"remove {number}", argv=["rmdir", f"{CGROUPS}/{again}"])]
    results = boot(made, machine=slow(tmp_path, "cores = 4"), sched=WATCHING).check()
    used = [used_ms(results, again, f"since {number}", f"until {number}") / window_ms for number in range(3)]
    assert used == [pytest.approx(cpus, rel=0.1) for cpus in (0.2, 2.0, 0.4)]


ODD_GROUPS = """
cd /sys/fs/cgroup
odd=$(printf 'a b\\377%s$x\\\\040')
mkdir "$odd"
echo 2000 10000 > "$odd/cpu.max"
for i in $(seq 300); do mkdir g$i; echo 5000 > g$i/cpu.max; rmdir g$i; done
used() { read -r _ usage < "$odd/cpu.stat"; echo "${EPOCHREALTIME/./} $usage"; }
(echo $BASHPID > "$odd/cgroup.procs"; exec heddle-load spin --threads 2 --for-ms 2000) > /tmp/spin &
sleep 0.5; used; sleep 0.5; used
wait
"""


def test_the_loader_is_not_stopped_by_odd_groups(boot: Boot, tmp_path: Path) -> None:
    """A name of blanks, escapes and bytes that are no text; hundreds of groups that vanish as they are read."""
    steps = [
        *limit("any", 0.5),  # switches the controller on
        Step(name="odd", argv=["bash", "-c", ODD_GROUPS]),
        Step(name="stop", action=SchedulerStop()),
    ]
    results = boot(steps, machine=slow(tmp_path, "cores = 4"), sched=WATCHING).check()
    (since, before), (until, after) = (map(int, line.split()) for line in results.step("odd").stdout.splitlines())
    assert (after - before) / (until - since) == pytest.approx(0.2, rel=0.05)
    [ended] = [one for one in results.of("scheduler") if one["state"] != "attached"]
    assert ended["state"] == "detached", ended["stderr"]


FLIGHT = """
set -e
cd /sys/fs/cgroup/flight
echo +cpu > cgroup.subtree_control
pid=$(pgrep -x heddle-load)
used() { read -r _ usage < cpu.stat; echo "${EPOCHREALTIME/./} $usage"; }
used
for i in $(seq 200); do mkdir c$i; echo $pid > c$i/cgroup.procs; done
used
"""


def test_a_new_group_is_no_way_out_of_a_quota(boot: Boot, tmp_path: Path) -> None:
    """Tasks that go to a new group below the limited one every few milliseconds draw from its pool all the same."""
    quota = 0.05
    steps = [
        *limit("flight", quota, 20),
        spin("flight/c0", 2, 8000),
        sleep("settle", 100),
        Step(name="flight", argv=["bash", "-c", FLIGHT]),
        Step(name="end", action=KillStep(step="load flight/c0")),
    ]
    results = boot(steps, machine=slow(tmp_path, "cores = 4"), sched=HEDDLE)
    (since, before), (until, after) = (map(int, line.split()) for line in results.step("flight").stdout.splitlines())
    assert (after - before) / (until - since) < 1.1 * quota


ADJUSTED_MS = 2500


@WAYS
@pytest.mark.every_kernel
def test_a_new_limit_holds_at_once(boot: Boot, sched: str, tmp_path: Path, record_property: Record) -> None:
    """A throttled group is given nearly all CPUs, anew before each period is over, as an autoscaler may do."""
    group, cpus = "scaled", 4
    values = ["--values", "3900000 1000000,3910000 1000000", "--hz", "3", "--for-ms", str(ADJUSTED_MS)]
    steps = [*limit(group, 0.05, 1000), spin(group, cpus, 300 + ADJUSTED_MS), sleep("throttle", 300)]
    steps += [read(group, "throttled")]
    steps += [Step(name="adjust", argv=["heddle-load", "toggle", "--file", f"/sys/fs/cgroup/{group}/cpu.max", *values])]
    steps += [read(group, "adjusted"), wait(group)]
    results = boot(steps, machine=slow(tmp_path, f"cores = {cpus}"), sched=sched).check()
    used = used_ms(results, group, "throttled", "adjusted") / (cpus * ADJUSTED_MS)
    record_property(f"CPU time of a group with a raised limit on {boot.kernel}, {sched}", round(used, 3))
    assert used > 0.85


def test_a_throttled_group_leaves_its_share(boot: Boot, tmp_path: Path) -> None:
    """Three groups of equal weight on one CPU in a fourth: what one may not use, the two others share."""
    groups = {"pack/limited": 0.1, "pack/one": 0.45, "pack/two": 0.45}
    steps = limit("pack/limited", 0.1, 50)
    for group in groups:
        step = spin(group, 2, SETTLE_MS + LIMITED_MS + 200)
        steps.append(step.model_copy(update={"cpus": "1"}))
    steps += [sleep("settle", SETTLE_MS), *(read(group, "settled") for group in groups)]
    steps += [sleep("run", LIMITED_MS), *(read(group, "ran") for group in groups), *map(wait, groups)]
    results = boot(steps, machine=slow(tmp_path, "cores = 2"), sched=HEDDLE).check()
    used = {group: used_ms(results, group, "settled", "ran") / LIMITED_MS for group in groups}
    assert used == pytest.approx(groups, rel=0.03)


BURSTS = 8

BURST_MS, IDLE_MS = 25, 487
"""of each turn, which begins 12 ms later in a period than the one before: two of the bursts at most see a new period"""


@pytest.mark.every_kernel
def test_a_burst_is_saved_up(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Of two groups that have been idle and use the same quotas, one has saved up 10 ms more."""
    groups = ("plain", "saver")
    steps = limit("plain", 0.1) + limit("saver", 0.1, burst=0.1)
    for turn in range(BURSTS):
        spins = [spin(group, 1, BURST_MS).model_copy(update={"name": f"load {group} {turn}"}) for group in groups]
        steps += [sleep(f"idle {turn}", IDLE_MS - 15), *(read(group, f"before {turn}") for group in groups), *spins]
        steps += [sleep(f"run {turn}", BURST_MS + 15), *(read(group, f"after {turn}") for group in groups)]
        steps += [wait(f"{group} {turn}") for group in groups]
    results = boot(steps, machine=slow(tmp_path, "cores = 4"), sched=HEDDLE).check()
    plain, saver = (
        [used_ms(results, group, f"before {turn}", f"after {turn}") for turn in range(BURSTS)] for group in groups
    )
    record_property(f"used in {BURST_MS} ms without and with a burst on {boot.kernel}, ms", (plain, saver))
    assert min(plain) >= 9
    assert median(map(sub, saver, plain)) == pytest.approx(10, abs=1), (plain, saver)


def test_the_least_quota_starves_nobody_to_death(boot: Boot, tmp_path: Path) -> None:
    """Eight threads have a millisecond of each second, longer than the watchdog waits; then they can be killed."""
    group, seconds = "poor", 12
    steps = [*limit(group, 0.001, 1000), spin(group, 8, 1000 * seconds), read(group, "before")]
    steps += [sleep("starve", 1000 * seconds), read(group, "after")]
    steps += [Step(name="kill", action=KillStep(step=f"load {group}"))]
    results = boot(steps, machine=slow(tmp_path, "cores = 4"), sched=HEDDLE).check()
    # What the first looks at an empty pool come too late for is owed, and a part of it forgiven.
    assert 0.5 * seconds < used_ms(results, group, "before", "after") < 4 * seconds


def test_a_throttled_reader_holds_up_nobody(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """A task that the least quota stops in the midst of an RCU reader would go on half a minute later."""
    group, seconds = "poor", 30
    load = Step(name=f"load {group}", argv=lookups(30), cgroup=group, background=True)
    steps = [load, sleep("all read", 1000), *limit(group, 0.001, 1000), read(group, "before")]
    steps += [grace_periods(2, for_s=seconds, timeout_ns=10 * seconds * 1000 * MS), read(group, "after")]
    steps += [Step(name="kill", action=KillStep(step=f"load {group}"))]
    results = boot(steps, machine=slow(tmp_path, "cores = 3"), sched=HEDDLE, timeout_ns=600_000 * MS).check()
    longest, used = longest_ms(results), used_ms(results, group, "before", "after")
    record_property(f"longest going of a CPU beside throttled readers on {boot.kernel}, their use, ms", (longest, used))
    assert longest < 2_000
    # Readers may overdraw 100 ms, of which what takes more than four seconds to gain is forgiven: 2 % of a CPU.
    assert used < 0.03 * 1000 * seconds


def test_the_counters_of_bandwidth(boot: Boot, tmp_path: Path) -> None:
    steps = [*limit("half", 0.5), spin("half", 1, 1000), wait("half")]
    free = [spin("free", 1, 100), wait("free")]
    results = boot(
        [*counted("free", [], free), *counted("half", [], steps)],
        machine=slow(tmp_path, "cores = 2"),
        sched=HEDDLE,
        timeout_ns=240_000 * MS,  # three loads, up to 50 s each on CPUs so slow
    ).check()
    names = ("parked", "nr_periods", "nr_throttled", "throttled_usec")
    without, with_quota = (counters(results, part) for part in ("free", "half"))
    assert all(without[name] == 0 for name in names)
    assert 9 <= with_quota["nr_periods"] <= 12
    assert 9 <= with_quota["nr_throttled"] <= with_quota["nr_periods"]
    assert with_quota["throttled_usec"] == pytest.approx(500_000, rel=0.15)
    assert with_quota["parked"] >= 9


HOG = """
(echo $BASHPID > /sys/fs/cgroup/{group}/cgroup.procs; exec heddle-load spin --threads 1 --for-ms 2000) > /tmp/spin
cat /sys/fs/cgroup/{group}/cpu.stat
"""

ASKING = """
coproc socket {{ socat - UNIX-CONNECT:/var/run/scx/root/stats; }}
ask() {{ echo '{{"req":"stats","args":{{"target":"group"}}}}' >&${{socket[1]}}; read -r answer <&${{socket[0]}}; }}
ask
{hog}
ask
stat -c 'inode %i' /sys/fs/cgroup/{group}
echo "$answer"
"""
"""What was counted between two requests: clients are told differences."""

THROTTLED = ("nr_throttled", "throttled_usec")


def kernels_account(results: Results, step: str) -> dict[str, int]:
    """Return what a cpu.stat says of a limit."""
    lines = (line.split() for line in results.step(step).stdout.splitlines())
    return {words[0]: int(words[1]) for words in lines if words[0] in ("nr_periods", *THROTTLED)}


def test_a_groups_account_is_the_kernels_but_not_in_cpu_stat(
    boot: Boot, tmp_path: Path, record_property: Record
) -> None:
    """A hog of 2 s has 20 of 100 ms, of EEVDF and of scx_heddle: equal within 2 periods and a tenth of the time.

    What cpu.stat shows is a part of the kernel's own scheduler: no program can add to it.
    """
    start = SchedulerStart(scheduler=SchedulerCommand(name="heddle", argv=[PROGRAM]))
    hogs = {group: HOG.format(group=group) for group in ("fair", "heddle")}
    steps = [
        *limit("fair", 0.2),
        *limit("heddle", 0.2),
        Step(name="fair", argv=["bash", "-c", hogs["fair"]]),
        Step(name="start", action=start),
        Step(name="heddle", argv=["bash", "-c", ASKING.format(hog=hogs["heddle"], group="heddle")]),
    ]
    machine, files = slow(tmp_path, "cores = 4"), scheduler.parse(HEDDLE).files()
    results = boot(steps, machine=machine, layers=["socat"], files=files).check()
    fair = kernels_account(results, "fair")
    *_, inode, answer = results.step("heddle").stdout.splitlines()
    heddle = json.loads(answer)["args"]["resp"]["groups"][inode.split()[1]]
    record_property(f"throttled in 2 s on {boot.kernel}, by EEVDF and by scx_heddle", (fair, heddle))
    assert heddle["nr_throttled"] == pytest.approx(fair["nr_throttled"], abs=2)
    assert heddle["throttled_usec"] == pytest.approx(fair["throttled_usec"], rel=0.1)
    assert {kernels_account(results, "heddle")[name] for name in THROTTLED} == {0}
