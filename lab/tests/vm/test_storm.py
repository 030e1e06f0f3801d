"""Storms of short processes: they cost tasks that wake up no more than under EEVDF."""

import pytest

from tests.conftest import Boot, Record
from tests.vm.beside import killed, load, pause, under_both

pytestmark = pytest.mark.vm

BAR = 1.5
"""of EEVDF's median"""

REQUESTS = ["--load", 0.2, "--cpus-online", 4, "--request-insns", 120_000, "--think-us", 2_000, "--requests", 400]


def test_tasks_that_never_slept_do_not_delay_wakees(boot: Boot, record_property: Record) -> None:
    """Kind: a task in its first run is kept from being preempted, as nothing is known of it, for its whole life."""
    storm = load("storm", "forks", "--exec", "--count", 1_000_000, "--parallel", 6, background=True)
    requests = load("requests", "schbench", *REQUESTS, "--message-threads", 1)
    said = under_both(boot, {"storm": [storm, pause("settle", 50), requests, *killed(storm)]}, "smp-4")
    got, bar = (side.report("requests")["wakeup_latency_ns"]["p50"] for side in said["storm"])
    record_property(f"median wakeup beside a storm on {boot.kernel}, and EEVDF's, ns", (got, bar))
    assert got <= BAR * bar
