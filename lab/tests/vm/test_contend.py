"""Tasks that wait for one another without sleeping: they hold up those that compute no longer than under EEVDF."""

from statistics import fmean

import pytest

from tests.conftest import Boot, Record
from tests.vm.beside import load, under_both

pytestmark = pytest.mark.vm

BARRIERS = {
    "as many a CPU": ["--threads", 8, "--count", 100, "--work-insns", 2_000_000],
    "one more": ["--threads", 9, "--count", 100, "--work-insns", 2_000_000],
    "short": ["--threads", 8, "--count", 1_000, "--work-insns", 200_000],
}
BAR = 1.05
"""of the time under EEVDF: which threads meet on a CPU moves it by some hundredths"""

ROUNDS = 3
LOCK = ["--threads", 8, "--count", 2_000, "--work-insns", 20_000, "--held-insns", 2_000]
LOCK_BAR = 1.25
"""of EEVDF's time: whether the holder is preempted is chance, and moves a round by a tenth either way"""


def test_yielding_at_a_barrier_lets_the_others_compute(boot: Boot, record_property: Record) -> None:
    """Kind: a task that yields has had less CPU time than others, comes first again, and yields again."""
    said = under_both(
        boot, {name: [load("barrier", "contend", "barrier", *how)] for name, how in BARRIERS.items()}, "smp-4"
    )
    for name in BARRIERS:
        got, bar = (side.report("barrier")["elapsed_ns"] for side in said[name])
        record_property(f"{name} at a barrier on {boot.kernel}, and under EEVDF, ns", (got, bar))
        assert got <= BAR * bar, name


def test_the_holder_of_a_spinlock_is_not_kept_from_its_cpu(boot: Boot, record_property: Record) -> None:
    """Kind: twice as many threads as CPUs spin for a lock, whose holder may wait for a CPU meanwhile."""
    rounds = [f"round {number}" for number in range(ROUNDS)]
    said = under_both(boot, {name: [load("lock", "contend", "lock", *LOCK)] for name in rounds}, "smp-4")
    taken = [[side.report("lock")["elapsed_ns"] for side in said[name]] for name in rounds]
    got, bar = (fmean(side) for side in zip(*taken, strict=True))
    record_property(f"a spinlock on {boot.kernel}, and under EEVDF, ns", (got, bar))
    assert got <= LOCK_BAR * bar
