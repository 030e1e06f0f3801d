"""A guest that goes on from a snapshot does to the last bit what one does that boots."""

import pytest

from heddle_lab import kernels, scheduler, vm
from heddle_lab.job import Job, Step
from heddle_lab.machine import load as load_machine
from tests.conftest import KERNELS
from tests.vm.beside import load

pytestmark = pytest.mark.vm

MACHINES = ["smp-4", "smp-16-2llc", "xeon-8358"]

STEPS = [
    Step(name="crowd", argv=["hackbench", "-g", "2", "-f", "4", "-l", "50"]),
    load("timers", "periodic", "--tasks", 8, "--period-us", 900, "--work-insns", 3_000, "--for-ms", 40),
]


@pytest.mark.parametrize("sched", ["eevdf", "scx_heddle"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_records_are_equal(kernel: str, machine: str, sched: str) -> None:
    """The first run makes the snapshot, unless another test has, and goes on from it as all later ones do."""
    chosen = scheduler.parse(sched)
    job = Job(seed=3, scheduler=chosen.command(), steps=STEPS)
    guest = vm.Guest(machine=load_machine(machine), kernel=kernels.find(kernel), job=job, files=chosen.files())
    resumed, cold = (vm.run(guest, cold=cold).check() for cold in (False, True))
    assert resumed.records == cold.records
    assert resumed.console == cold.console
