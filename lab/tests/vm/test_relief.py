"""Nobody waits for ever, seen on a real kernel: sched_ext would throw the scheduler out for it."""

from pathlib import Path

import pytest

from heddle_lab.job import KillStep, Step
from tests.conftest import Boot, Record
from tests.vm.counting import PATIENT, counted, counters
from tests.vm.machines import slow
from tests.vm.readers import grace_periods, longest_ms, lookups
from tests.vm.test_core import HEDDLE, MS, STATE, cpu_ns, read, sleep, spin, write
from tests.vm.test_failure import shell

FOR_MS = 14_000
"""well beyond the 10 s for which the tests' watchdog waits"""

CROWDS = {"hogs": ["--threads", "40"], "heavy hogs": ["--threads", "5", "--nice", "-20"]}
"""by runs of a tick, 4 ms, a SCHED_IDLE task beside them is entitled to one in 55 s, and in ten minutes"""

NICE_0, NICE_19 = 1024, 15
"""weights: sched_prio_to_weight in kernel/sched/core.c"""

LOWLY = ["--threads", "4", "--policy", "idle,idle,other,batch", "--nice", "0,0,19,19"]


@pytest.mark.parametrize("cgroup", ["flat", "off"])
@pytest.mark.parametrize("crowd", CROWDS)
def test_the_lightest_run_in_a_crowd_on_one_cpu(boot: Boot, crowd: str, cgroup: str, tmp_path: Path) -> None:
    """Each gets a slice every few seconds, the crowd all the rest."""
    load = [
        spin("crowd", *CROWDS[crowd], "--cpus", "0", for_ms=10 * FOR_MS, background=True),
        spin("lowly", *LOWLY, "--cpus", "0", for_ms=FOR_MS),
        read("state", STATE),
        Step(name="kill", action=KillStep(step="crowd")),
    ]
    steps = counted("crowd", ["--cgroup", cgroup], load, interval_s=1)
    results = boot(steps, machine=slow(tmp_path, "cores = 2"), sched=HEDDLE).check()
    assert results.step("state").stdout.strip() == "enabled"
    got = cpu_ns(results, "lowly")
    assert min(got) > 3 * MS
    assert sum(got) < 0.01 * FOR_MS * MS
    assert counters(results, "crowd")["relieved"] >= 4


THP = "/sys/kernel/mm/transparent_hugepage"

SMALL_PAGES = f"""
echo always > {THP}/enabled
a_huge_page=$(printf '%*s' 6000000)
echo never > {THP}/enabled
: > /tmp/ready
for n in 1 2 3; do eval small_pages_$n='$(printf %*s 60000000)'; done
sleep 1000
"""
"""khugepaged looks at processes that have had a huge page, and makes one of 512 small ones that are in use"""


STALL = ["rcupdate.rcu_cpu_stall_timeout=10"]
"""s: half of the default, after which the kernel reports a stall and throws the scheduler out"""


def test_a_reader_in_a_crowd_holds_up_nobody(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """khugepaged, of nice 19, is put aside as it reads: a grace period would wait for its turns."""
    limit = {"timeout_ns": 200_000 * MS}
    looks = {"scan_sleep_millisecs": 1, "alloc_sleep_millisecs": 1, "pages_to_scan": 100_000}
    results = boot(
        [
            *(write(f"{THP}/khugepaged/{name}", str(value)) for name, value in looks.items()),
            shell("memory", SMALL_PAGES, background=True, **limit),
            shell("ready", "until [ -e /tmp/ready ]; do sleep 0.1; done", **limit),
            sleep(20_000, "some are there"),
            spin("crowd", "--threads", "36", for_ms=60_000, background=True, **limit),
            write(f"{THP}/enabled", "always"),
            grace_periods(2, for_s=50, **limit),
            read("collapsed", f"{THP}/khugepaged/pages_collapsed"),
            read("state", STATE),
        ],
        machine=slow(tmp_path, "cores = 3", speed=5),
        sched=HEDDLE,
        layers=["stress"],
        boot_parameters=STALL,
        timeout_ns=400_000 * MS,
    ).check()
    assert results.step("state").stdout.strip() == "enabled"
    longest = longest_ms(results)
    record_property(f"longest that a CPU took to go and come again beside a reader on {boot.kernel}, ms", longest)
    assert int(results.step("collapsed").stdout) >= 3
    # A CPU goes when several grace periods are over, some of which wait for many slices of khugepaged. If a task that
    # gets past the queue moved the queue's clock beyond those that wait there, rcu_preempt would wait for all hogs.
    assert "detected stalls" not in results.console


def test_who_reads_all_the_time_gains_nothing(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """48 of nice 19 are entitled to two fifths beside a hog; of them one in a tenth of a second goes out of turn."""
    load = [
        Step(name="readers", argv=lookups(48), nice=19, cpus="0", background=True),
        spin("hog", "--threads", "1", "--cpus", "0", for_ms=FOR_MS),
        read("state", STATE),
        Step(name="kill", action=KillStep(step="readers")),
        shell("preemption", "mount -t debugfs none /sys/kernel/debug; cat /sys/kernel/debug/sched/preempt"),
    ]
    steps = counted("readers", [], load, interval_s=1)
    results = boot(steps, machine=slow(tmp_path, "cores = 2"), sched=HEDDLE).check()
    assert results.step("state").stdout.strip() == "enabled"
    (got,) = cpu_ns(results, "hog")
    relieved = counters(results, "readers")["relieved"]
    record_property(f"part left to a hog beside 48 who read on {boot.kernel}", got / (FOR_MS * MS))
    record_property(f"turns of readers in {FOR_MS / 1000:g} s on {boot.kernel}", relieved)
    assert got > NICE_0 / (NICE_0 + 48 * NICE_19) * FOR_MS * MS
    assert relieved < FOR_MS / 90
    # 6.12 puts nobody aside within a system call.
    assert relieved > FOR_MS / 200 or "(voluntary)" in results.step("preemption").stdout


CROWD = 5000

TURNS = """
look() {
  for threads in /proc/[0-9]*/task; do
    set -- $threads/*
    [ $# -gt 1000 ] || continue
    for thread; do
      read -r id name state rest < $thread/stat
      read -r ran_ns rest < $thread/schedstat
      [ $state != R ] || echo $id $ran_ns
    done
  done
}
look > /tmp/before
sleep 15
look > /tmp/after
declare -A prior_ns
while read -r id ran_ns; do prior_ns[$id]=$ran_ns; done < /tmp/before
threads=0 least_ns=1000000000
while read -r id ran_ns; do
  [ "${prior_ns[$id]}" ] || continue
  ((++threads, ran_ns -= prior_ns[$id], least_ns = ran_ns < least_ns ? ran_ns : least_ns))
done < /tmp/after
echo $threads $least_ns
"""
"""threads of the crowd that want the CPU at two looks, 15 s apart, and the least that one computed in between"""


BEGINS = " ".join([f"begins={HEDDLE}", *PATIENT])
"""on CPUs as slow as these all tasks begin within the time that the test has"""


def test_thousands_on_one_cpu_have_a_turn_each(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """Of slices that end at a tick of 4 ms, the 10 s of the tests' watchdog have 2,500; here they are half a ms."""
    limit = {"timeout_ns": 200_000 * MS}
    begin = ["--run-ms", "20000", "--sleep-ms", "1"]
    results = boot(
        [
            spin("crowd", "--threads", str(CROWD), "--cpus", "0", *begin, for_ms=100_000, background=True, **limit),
            sleep(65_000, "all have begun"),
            shell("turns", TURNS, cpus="1", **limit),
            read("state", STATE),
            Step(name="kill", action=KillStep(step="crowd")),
        ],
        machine=slow(tmp_path, "cores = 2"),
        sched=BEGINS,
        timeout_ns=300_000 * MS,
    ).check()
    assert results.step("state").stdout.strip() == "enabled"
    threads, least_ns = map(int, results.step("turns").stdout.split())
    record_property(f"least of {threads} turns of a crowd on {boot.kernel}, ns", least_ns)
    # A few still wait, asleep, for the lock at which all begin.
    assert threads > 0.9 * CROWD
    assert least_ns >= MS / 2
