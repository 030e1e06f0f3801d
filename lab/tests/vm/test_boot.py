"""What depends on how a kernel was booted and built: what the loader says of it, and it of the loader."""

import json
from pathlib import Path

import pytest

from heddle_lab import kernels, scheduler
from heddle_lab.job import CgroupSet, SchedulerCommand, SchedulerStart, SchedulerStop, Step
from heddle_lab.results import Results
from tests.conftest import Boot, Files, Record
from tests.vm.machines import slow
from tests.vm.shares import TICK_MS
from tests.vm.test_core import HEDDLE, MS, PROGRAM, cpu_ns, sleep, spin, wait, write

CHECK = [PROGRAM, "--check"]


def program() -> Files:
    """Return scx_heddle for a guest that does not begin with it."""
    return scheduler.parse(HEDDLE).files()


def under(name: str, options: list[str], steps: list[Step]) -> list[Step]:
    """Return steps between the start and the end of a scheduler."""
    start = SchedulerStart(scheduler=SchedulerCommand(name=name, argv=[PROGRAM, *options]))
    return [Step(name=f"{name}: start", action=start), *steps, Step(name=f"{name}: end", action=SchedulerStop())]


def remarks(results: Results, step: str) -> list[str]:
    """Return what a check says that hinders nothing."""
    return [line for line in results.step(step).stdout.splitlines() if line.startswith("remark ")]


def test_domains_isolated_at_boot_are_named(boot: Boot) -> None:
    """The kernel's own answer is an error number."""
    steps = [Step(name=name, argv=argv, expect_exit=1) for name, argv in (("check", CHECK), ("load", [PROGRAM]))]
    results = boot(steps, boot_parameters=["isolcpus=3"], files=program()).check()
    [missing] = [line for line in results.step("check").stdout.splitlines() if line.startswith("missing ")]
    said = "booted with isolcpus=3, beside which the kernel takes no sched_ext scheduler: boot without"
    assert missing.startswith(f"missing  no domains isolated by isolcpus=: {said}")
    [error] = results.step("load").stderr.splitlines()
    assert error.startswith(f"scx_heddle: {said}")


HOG_CPU = 3
SECOND_MS = 1000
PAIR_MS = 2000


def ticks_of_a_hog(name: str) -> list[Step]:
    """Count the timer interrupts of a CPU in a second that one task has for itself."""
    look = ["grep", "LOC:", "/proc/interrupts"]
    return [
        spin(f"{name}: hog", "--threads", "1", for_ms=SECOND_MS + 500, cpus=str(HOG_CPU), background=True),
        sleep(200, f"{name}: all set"),
        Step(name=f"{name}: before", argv=look, cpus="0"),
        sleep(SECOND_MS, f"{name}: second"),
        Step(name=f"{name}: after", argv=look, cpus="0"),
        wait(f"{name}: hog"),
    ]


def keeps_ticks(kernel: str) -> bool:
    """Tell whether a CPU keeps the tick for a slice that ends: Linux 6.18 forgets to."""
    return kernels.version(kernel) >= (7, 2)


def ticks(results: Results, name: str) -> int:
    after, before = (int(results.step(f"{name}: {when}").stdout.split()[1 + HOG_CPU]) for when in ("after", "before"))
    return after - before


def preempted(results: Results, name: str) -> int:
    """Return how often a hog had to let another run."""
    [hog] = json.loads(results.step(name).stdout)["threads"]
    return int(hog["preempted"])


PASSERS_BY = 10


def test_other_isolation_loads_and_ticks_are_told_of(boot: Boot, record_property: Record) -> None:
    """A partition of CPUs that a cpuset isolates, and the boot parameters that leave domains alone.

    Real-time tasks that pass by have 6.18 lose the tick of a CPU where two tasks take turns, not each of them.
    """
    steps = [
        Step(name=file, action=CgroupSet(cgroup="apart", file=file, value=value))
        for file, value in (("cpuset.cpus", "2"), ("cpuset.cpus.partition", "isolated"))
    ]
    steps.append(Step(name="partition", argv=["cat", "/sys/fs/cgroup/apart/cpuset.cpus.partition"]))
    steps += [Step(name="check", argv=CHECK), *ticks_of_a_hog("eevdf")]
    pair = [
        spin(name, "--threads", "1", for_ms=PAIR_MS, cpus=str(HOG_CPU), background=True) for name in ("this", "that")
    ]
    for number in range(PASSERS_BY):
        passer_by = Step(name=f"passer-by {number}", argv=["true"], cpus=str(HOG_CPU), policy="fifo")
        pair += [sleep(37, f"both run {number}"), passer_by]
    steps += under("heddle", [], [*ticks_of_a_hog("heddle"), *pair, wait("this"), wait("that")])
    steps += under("partial", ["--partial"], ticks_of_a_hog("partial"))
    parameters = [f"nohz_full={HOG_CPU}", f"isolcpus=managed_irq,{HOG_CPU}"]
    results = boot(steps, boot_parameters=parameters, files=program()).check()
    assert results.step("partition").stdout.strip() == "isolated"
    [said] = remarks(results, "check")
    assert f"nohz_full={HOG_CPU}: " in said
    per_second = {name: ticks(results, name) for name in ("eevdf", "heddle", "partial")}
    record_property(f"ticks a second of a CPU of nohz_full with one task on {boot.kernel}", per_second)
    turns = sum(preempted(results, name) for name in ("this", "that"))
    record_property(f"turns in {PAIR_MS} ms of two hogs of such a CPU on {boot.kernel}", turns)
    assert (turns > 0.8 * PAIR_MS / TICK_MS) == keeps_ticks(boot.kernel)
    assert (per_second["heddle"] > 240) == keeps_ticks(boot.kernel)
    assert max(per_second["eevdf"], per_second["partial"]) < 20


CPUS = 4
SESSION_MS = 2000


def sessions(name: str) -> list[Step]:
    """Hogs of two sessions: each step is one."""
    return [
        spin(f"{name}: many", "--threads", str(4 * CPUS), for_ms=SESSION_MS, background=True),
        spin(f"{name}: one", "--threads", "1", for_ms=SESSION_MS),
        wait(f"{name}: many"),
    ]


def test_sessions_are_no_groups(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Of 17 hogs on 4 CPUs, one that is alone in its session, with autogroup on: a CPU, or a seventeenth of four."""
    steps = [
        write("/proc/sys/kernel/sched_autogroup_enabled", "1"),
        Step(name="check", argv=CHECK),
        *sessions("eevdf"),
        *under("heddle", [], sessions("heddle")),
    ]
    results = boot(steps, machine=slow(tmp_path, f"cores = {CPUS}"), files=program()).check()
    got = {name: cpu_ns(results, f"{name}: one")[0] / (SESSION_MS * MS) for name in ("eevdf", "heddle")}
    record_property(f"CPUs of the one hog of a session, beside 16 of another, on {boot.kernel}", got)
    [said] = remarks(results, "check")
    assert said.startswith("remark   autogroup is on: ")
    assert got["eevdf"] > 2 * got["heddle"]
    assert got["heddle"] == pytest.approx(CPUS / (4 * CPUS + 1), rel=0.15)


FAMILIES = ["", "--runq global", "--cgroup off", "--partial", "--idle builtin", "--cpu-max watch"]


@pytest.mark.every_kernel
def test_the_kernel_warns_of_nothing(boot: Boot) -> None:
    """Neither as it loads the scheduler nor as groups come: its log from the agent's start on."""
    steps = [Step(name="weight", action=CgroupSet(cgroup="first", file="cpu.weight", value="200"))]
    for options in FAMILIES:
        group = f"group{FAMILIES.index(options)}"
        weight = CgroupSet(cgroup=group, file="cpu.weight", value="50")
        steps += under(f"scx_heddle {options}", options.split(), [Step(name=group, action=weight)])
    steps.append(Step(name="log", argv=["dmesg"]))
    steps.append(Step(name="warnings", argv=["dmesg", "--level=emerg,alert,crit,err,warn"]))
    results = boot(steps, files=program()).check()
    log = results.step("log").stdout
    assert log.count(" enabled") == len(FAMILIES), log
    assert results.step("warnings").stdout == ""
