"""One boot: what goes wrong is a line, what goes right is the same twice."""

from pathlib import Path
from typing import NoReturn

import pytest

from heddle_lab import bzimage, kernels, machine, variant, vm, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.job import Job, Step, Write
from heddle_lab.runner import Progress, Runner
from heddle_lab.store import Store
from tests.conftest import KERNELS, Boot

pytestmark = pytest.mark.vm

CRASH = Step(name="crash", action=Write(path="/proc/sysrq-trigger", value="c"))
PINGPONG = Step(name="load", argv=["hackbench", "-g", "1", "-f", "2", "-l", "20"])


def test_panic(boot: Boot) -> None:
    results = boot([PINGPONG, CRASH])
    assert results.step("load").exit == 0
    assert results.error == "the guest's kernel panicked after 'load': sysrq triggered crash"
    assert "Call Trace" in results.console


def test_hang_is_killed(boot: Boot) -> None:
    fork = Step(name="forks", argv=["bash", "-c", "while :; do /bin/true; done"])
    assert boot([]).error is None
    results = boot([fork], wall_timeout_s=3.0)
    assert results.error is not None
    assert results.error.startswith("the guest hung after 'ready': killed after 3 s of wall time")


def test_hang_before_the_first_snapshot_is_killed(boot: Boot) -> None:
    """A kernel without an init panics, and is told to stay there."""
    results = boot([], boot_parameters=["rdinit=/none", "init=/none", "panic=0"], wall_timeout_s=4.0)
    assert results.error is not None
    assert results.error.startswith("the guest hung before the agent was ready: killed after 4 s of wall time")


def test_qemu_that_cannot_start() -> None:
    huge = machine.load("smp-4").model_copy(update={"memory_mib": 1 << 40})
    results = vm.run(vm.Guest(machine=huge, kernel=kernels.find("7.3"), job=Job()))
    assert results.error is not None
    assert results.error.startswith("QEMU died before the agent was ready (status 1); last output: ")


@pytest.mark.parametrize("kernel", KERNELS)
def test_debians_kernels_are_entered_unpacked(kernel: str) -> None:
    found = kernels.find(kernel)
    assert found.bootable().read_bytes()[:4] == b"\x7fELF"
    assert bzimage.release(found.image.read_bytes(), kernel) == found.release


def make_cell(kernel: str, sched: str, seed: int) -> Cell:
    load = workload.load("hackbench")
    return Cell(
        machine=machine.load("smp-4"),
        kernel=kernels.find(kernel),
        contestant=variant.of_scheduler(sched),
        workload=load,
        params=load.parameters({"loops": 20}),
        seed=seed,
    )


@pytest.mark.every_kernel
def test_same_seed_same_bits_other_seed_other_bits(boot: Boot) -> None:
    cells = [make_cell(boot.kernel, "eevdf", seed) for seed in (1, 1, 2)]
    first, second, other = (vm.run(cell.guest()).check().records for cell in cells)
    assert first == second
    assert first != other


def test_a_cell_is_measured_once_and_a_failure_spoils_no_other(tmp_path: Path) -> None:
    good, bad = make_cell("7.3", "eevdf", 1), make_cell("7.3", "none=sleep 0", 1)
    ended: list[Progress] = []
    runner = Runner(Store(tmp_path), report=ended.append)
    outcome = runner.run([bad, good])
    assert list(outcome.results) == [good.key()]
    assert [failure.cell for failure in outcome.failures] == [bad.label]
    assert "scheduler 'none'" in outcome.failures[0].error
    assert "\n" not in outcome.failures[0].error
    assert len(ended) == 2
    assert runner.run([good]).results == outcome.results
    assert len(ended) == 2


def test_workers_that_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(**_: object) -> NoReturn:
        raise TimeoutError

    monkeypatch.setattr("heddle_lab.runner.LocalCluster", stuck)
    with pytest.raises(HeddleError, match=r"^the workers did not start within \d+ s: is this machine too busy\?"):
        Runner(Store(tmp_path)).run([make_cell(KERNELS[0], "eevdf", 1)])
