"""What tasks did long ago does not decide how they run now."""

import pytest

from tests.conftest import Boot, Record
from tests.vm.beside import load, pause, under_heddle

pytestmark = pytest.mark.vm

LOSS = 0.02

AGE_MS = 2_000


@pytest.mark.parametrize(("machine", "pairs"), [("smp-16-2llc", 4), ("smp-4", 2)])
def test_pairs_that_computed_first_are_as_fast_as_fresh_ones(
    boot: Boot, record_property: Record, machine: str, pairs: int
) -> None:
    """Kind: averages of a task's whole life place it; a task that changes its ways keeps the old place."""
    argv = ["pingpong", "--pairs", pairs, "--count", 8_000, "--work-insns", 4_000]
    parts = {f"age {age}": [load("pairs", *argv, "--age-ms", age), pause("rest", 20)] for age in (0, AGE_MS)}
    said = under_heddle(boot, parts, machine)
    fresh, aged = (said[name].report("pairs")["throughput"] for name in parts)
    record_property(f"round trips a second of fresh and of aged pairs on {boot.kernel}, {machine}", (fresh, aged))
    assert aged >= (1 - LOSS) * fresh
