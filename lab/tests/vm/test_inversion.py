"""Quotas and the kernel's locks: a task that its quota stops holds none that others wait for."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle_lab.job import CgroupSet, Read, Step
from tests.conftest import Boot, Record
from tests.vm.beside import MS, Part, ends, killed, load, pause, under_both, under_heddle
from tests.vm.machines import slow

pytestmark = pytest.mark.vm

BAR = 2.0
"""of EEVDF's longest"""

CALL_US = 10_000
"""or so long: a stopped task runs on to the end of its system call, of which the longest here take some ms"""

FOLDER = "/tmp/shared"  # noqa: S108 (nobody else is in the guest)

MAKE = f"{FOLDER}/$n.{{1..500}}"


@dataclass(frozen=True)
class Contention:
    """What tasks of a group do over and over, and an outsider that then and again wants the same lock."""

    inside: str
    """with $n the number of the task"""
    outside: str
    tasks: int = 3

    @property
    def argv(self) -> list[str]:
        return [
            "bash",
            "-c",
            f"mkdir -p {FOLDER}; for n in {{1..{self.tasks}}}; do (while :; do {self.inside}; done) & done; wait",
        ]


CONTENTIONS = {
    "a folder": Contention(f"touch {MAKE}; rm -f {MAKE}", f"touch {FOLDER}/o.{{1..20}}; rm -f {FOLDER}/o.{{1..20}}"),
    "a file": Contention(
        f"dd if=/dev/zero of={FOLDER}/file bs=1M count=32 conv=notrunc status=none", f"touch {FOLDER}/file"
    ),
    "readers of RCU": Contention(
        "[ -e $(printf /usr/..%.0s {1..500}) ]",
        f"mkdir -p {FOLDER}/m; mount -t tmpfs none {FOLDER}/m; umount {FOLDER}/m",
        tasks=12,
    ),
}
"""the lock of a folder, that of a file in system calls one after the other, and grace periods, which readers hold up"""

OUTSIDE = """
for i in {1..%d}; do
  began=${EPOCHREALTIME/./}
  %s
  echo $((${EPOCHREALTIME/./} - began))
  sleep %s
done
"""
"""an outsider does so over and over, and how long it takes, us"""


@dataclass(frozen=True)
class Quota:
    """What a group may use, and how much more it may have used over the length of the test."""

    quota_us: int
    period_us: int
    gap_ms: int
    """between two turns of the outsider, so that they fall into many periods"""
    excess: float

    def __str__(self) -> str:
        return f"{self.quota_us} {self.period_us}"


TINY, SMALL = Quota(1_000, 1_000_000, 150, 2.0), Quota(5_000, 100_000, 20, 1.25)

TURNS = 40


def used(side: Part, quota: Quota) -> float:
    """What the group used between two readings as a multiple of its quota."""
    usec, at_ns = [], []
    for when in ("before", "after"):
        found = re.search(r"^usage_usec (\d+)$", side.stdout(when), re.MULTILINE)
        assert found is not None
        usec.append(int(found[1]))
        at_ns.append(side.results.step(f"{side.name}: {when}").virtual_ns)
    return (usec[1] - usec[0]) / ((at_ns[1] - at_ns[0]) / 1000) / (quota.quota_us / quota.period_us)


def inside_of(contention: Contention) -> Step:
    return Step(name="inside", argv=contention.argv, cgroup="pod", background=True)


def limit(value: str) -> Step:
    return Step(name=f"limit {value}", action=CgroupSet(cgroup="pod", file="cpu.max", value=value))


def read(when: str) -> Step:
    return Step(name=when, action=Read(path="/sys/fs/cgroup/pod/cpu.stat"))


def contended(contention: Contention, quota: Quota) -> list[Step]:
    """Tasks of a group and an outsider want one lock; the group is limited once all do so."""
    inside = inside_of(contention)
    outside = Step(name="outside", argv=["bash", "-c", OUTSIDE % (TURNS, contention.outside, quota.gap_ms / 1_000)])
    begin = [limit("max"), inside, pause("all are at it", 50), limit(str(quota))]
    limited = [pause("settle", 300), read("before"), outside, pause("whole periods", 2_000), read("after")]
    # Killed tasks that EEVDF throttles take seconds to go.
    end = limit("max").model_copy(update={"name": "limit lifted"})
    return [*begin, *limited, end, *killed(inside)]


@pytest.mark.parametrize("name", CONTENTIONS, ids=lambda name: name.replace(" ", "-"))
def test_a_stopped_task_holds_no_lock_that_others_wait_for(boot: Boot, record_property: Record, name: str) -> None:
    """Kind: a task is stopped amid a system call, with a lock; an outsider waits for it for whole periods."""
    parts = {str(quota): contended(CONTENTIONS[name], quota) for quota in (SMALL, TINY)}
    said = under_both(boot, parts, "smp-4")
    longest = {part: [max(map(int, side.stdout("outside").split())) for side in sides] for part, sides in said.items()}
    shares = {str(quota): [used(side, quota) for side in said[str(quota)]] for quota in (SMALL, TINY)}
    record_property(f"longest turn for {name} beside a limited group, and EEVDF's, on {boot.kernel}, us", longest)
    record_property(f"use over quota, for {name}, and EEVDF's, on {boot.kernel}", shares)
    assert all(ours <= max(BAR * eevdf, eevdf + CALL_US) for ours, eevdf in longest.values()), longest
    assert all(shares[str(quota)][0] <= quota.excess for quota in (SMALL, TINY)), shares


ROUGH = 0.10


def test_a_quota_holds_on_average_amid_system_calls(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    """What a task uses until it leaves the kernel is owed: over seconds a group has its 20 % all the same."""
    quota = Quota(20_000, 100_000, 0, 1 + ROUGH)
    inside = inside_of(CONTENTIONS["a folder"])
    steps = [limit(str(quota)), inside, pause("settle", 500), read("before"), pause("run", 3_000), read("after")]
    parts = {"limited": [*steps, *killed(inside)]}
    ours, eevdf = under_both(boot, parts, slow(tmp_path, "cores = 4", 25))["limited"]
    shares = used(ours, quota), used(eevdf, quota)
    record_property(f"use over a quota of {quota} on {boot.kernel}, and EEVDF's", shares)
    assert shares[0] == pytest.approx(1, abs=ROUGH)


LONG_CALL = "while :; do dd if=/dev/urandom of=/dev/null bs=128M count=1 status=none; done"
"""on the slow machine each read lasts for more than 10 s"""


def test_a_long_system_call_of_another_does_not_starve_a_stopped_task(
    boot: Boot, tmp_path: Path, record_property: Record
) -> None:
    """Kind: what runs on in the kernel uses up all that its group gets; no other of it waits for 10 s."""
    hogs = load("hogs", "spin", "--threads", 2, "--for-ms", 20_000, cgroup="pod", background=True)
    long = Step(name="long", argv=["bash", "-c", LONG_CALL], cgroup="pod", background=True)
    end = limit("max").model_copy(update={"name": "limit lifted"})
    steps = [limit("max"), hogs, long, pause("the call has begun", 1_000), limit("1000 1000000")]
    steps += [pause("limited", 17_000), end, *ends(hogs), *killed(long)]
    said = under_heddle(boot, {"long": steps}, slow(tmp_path, "cores = 4", 5))
    gaps = said["long"].threads("hogs", "longest_gap_ns")
    record_property(f"longest gap beside a long system call on {boot.kernel}, ns", gaps)
    assert max(gaps) > 4_000 * MS
