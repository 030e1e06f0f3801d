"""What tasks did long ago does not decide how they run now."""

from pathlib import Path

import pytest

from tests.conftest import Boot, Record
from tests.vm.beside import load, pause, under_heddle
from tests.vm.machines import CACHES, slow

pytestmark = pytest.mark.vm

LOSS = 0.02

AGE_MS = 2_000


def full(folder: Path, topology: str) -> tuple[str, int]:
    """Return a machine, and how many pairs have as many tasks as it has CPUs."""
    if topology == "smt":
        return slow(folder, "dies = 2, cores = 2, threads = 2", 100, smt=61, caches=CACHES), 4
    return "smp-4", 2


@pytest.mark.parametrize("topology", ["smt", "plain"])
def test_pairs_that_computed_first_are_as_fast_as_fresh_ones(
    boot: Boot, tmp_path: Path, record_property: Record, topology: str
) -> None:
    """Kind: averages of a task's whole life place it; a task that changes its ways keeps the old place."""
    machine, pairs = full(tmp_path, topology)
    argv = ["pingpong", "--pairs", pairs, "--count", 8_000, "--work-insns", 4_000]
    parts = {f"age {age}": [load("pairs", *argv, "--age-ms", age), pause("rest", 20)] for age in (0, AGE_MS)}
    said = under_heddle(boot, parts, machine)
    fresh, aged = (said[name].report("pairs")["throughput"] for name in parts)
    record_property(f"round trips a second of fresh and of aged pairs on {boot.kernel}, {topology}", (fresh, aged))
    assert aged >= (1 - LOSS) * fresh
