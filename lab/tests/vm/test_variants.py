"""Variants in real guests: settings take effect, and one that is known to matter has the known sign."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle_lab import cli, comparison, experiment, kernels, machine, resultfile, variant, vm
from heddle_lab.cell import Cell
from heddle_lab.stats import Verdict
from heddle_lab.workload import Metric, Workload
from tests.conftest import KERNELS

SETTINGS = (
    "x:cmdline=isolcpus=3,sysctl=kernel.sched_rt_runtime_us=-1,feature=NO_RUN_TO_PARITY,"
    "debugfs=sched/base_slice_ns=2800000,env=COLOUR=blue"
)

FILES = {
    "/proc/cmdline": " isolcpus=3",
    "/proc/sys/kernel/sched_rt_runtime_us": "-1\n",
    "/sys/kernel/debug/sched/features": "NO_RUN_TO_PARITY ",
    "/sys/kernel/debug/sched/base_slice_ns": "2800000\n",
}


def cell(kernel: str, text: str) -> Cell:
    """Return a cell whose last step prints the files that settings change, and a variable."""
    reads = [{"name": path, "action": {"kind": "read", "path": path}} for path in FILES]
    load = Workload(
        name="test",
        summary="",
        source="",
        steps=[*reads, {"name": "env", "argv": ["sh", "-c", "echo $COLOUR"]}],
        metrics=[Metric(name="time", step="env", unit="ns", better="lower")],
    )
    contestant = variant.of_variant(variant.parse(text))
    box = machine.load("smp-4")
    return Cell(machine=box, kernel=kernels.find(kernel), contestant=contestant, workload=load, params={}, seed=1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_settings_take_effect(kernel: str) -> None:
    plain, changed = (vm.run(cell(kernel, text).guest()).check() for text in ("x:", SETTINGS))
    for path, text in FILES.items():
        assert text in changed.step(path).stdout
        assert text not in plain.step(path).stdout
    assert (plain.step("env").stdout, changed.step("env").stdout) == ("\n", "blue\n")


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("sysctl=kernel.no_such=1", "step 'sysctl kernel.no_such': "),
        ("debugfs=sched/no_such=1", "step 'debugfs sched/no_such': "),
        ("feature=NO_SUCH_THING", "step 'feature NO_SUCH_THING': "),
    ],
)
def test_a_setting_that_the_kernel_lacks_fails_the_cell(setting: str, complaint: str) -> None:
    error = vm.run(cell("7.3", f"x:{setting}").guest()).error
    assert error is not None
    assert complaint in error


def test_a_shorter_slice_lets_wakees_in(tmp_path: Path) -> None:
    """The sign was predicted, with its source, in experiments/parity.toml before it was measured."""
    sides = [one.text() for one in experiment.load("parity").variants if one.name in ("3ms", "700us")]
    point = ["--param", "load=1.25", "--param", "request_insns=1000000"]
    words = ["run", "--workload", "schbench", *point, "--seeds", "6", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli.cli, [*words, *(word for side in sides for word in ("--variant", side))])
    assert done.exit_code == 0, done.output
    (row,) = [row for row in comparison.variants(resultfile.read(tmp_path)) if row.primary]
    assert (row.baseline, row.candidate, row.metric) == ("3ms", "700us", "wakeup_latency_ns.p99")
    assert row.verdict is Verdict.BETTER
