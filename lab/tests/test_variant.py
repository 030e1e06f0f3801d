"""Variants: what the words mean, what reaches the guest, and which cells become pairs."""

import subprocess
import sys
from pathlib import Path

import pytest

from heddle_lab import comparison, differences, kernels, resultfile, scheduler, variant
from heddle_lab.cell import OFFSET_STEP, Cell
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment, Overrides
from heddle_lab.job import Write
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict
from heddle_lab.variant import Variant
from tests.conftest import bzimage
from tests.emulator import Emulator
from tests.test_identity import tree
from tests.test_report import cells

ALL = (
    "x:sched=hackbench 1,kernel=7.3,cmdline=isolcpus=1,2 nohz=off,sysctl=kernel.sched_rt_runtime_us=-1,"
    "feature=NO_RUN_TO_PARITY,debugfs=sched/base_slice_ns=700000,param=load=2,env=A=b=c"
)


def measured(*variants: str, **more: object) -> list[Cell]:
    """Return the cells of seed 1 of hackbench under some variants."""
    wanted = Overrides.model_validate({"workloads": ["hackbench"], "variants": list(variants), "seeds": 1, **more})
    return wanted.apply(None).cells()


def test_words_of_the_command_line() -> None:
    found = variant.parse(ALL)
    assert found == Variant(
        name="x",
        sched="hackbench 1",
        kernel="7.3",
        cmdline="isolcpus=1,2 nohz=off",
        sysctl={"kernel.sched_rt_runtime_us": "-1"},
        feature=["NO_RUN_TO_PARITY"],
        debugfs={"sched/base_slice_ns": "700000"},
        param={"load": 2},
        env={"A": "b=c"},
    )
    assert variant.parse(found.text()) == found
    assert variant.parse("x") == variant.parse("x:") == Variant(name="x")
    several = variant.parse("x:feature=A,feature=B,sysctl=a.b=1,sysctl=c=2,cmdline=quiet,cmdline=nosmt")
    assert (several.feature, several.sysctl, several.cmdline) == (["A", "B"], {"a.b": "1", "c": "2"}, "quiet nosmt")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "write NAME:KEY=VALUE,KEY=VALUE with keys sched, kernel, cmdline"),
        ("a b:feature=A", "write NAME:KEY=VALUE"),
        ("x:featrue=A", "not 'featrue=A': no key 'featrue'; known: sched, kernel"),
        ("x:feature=A,featrue=B", "no key 'featrue'"),
        ("x:feature", "write KEY=VALUE, not 'feature'"),
        ("x:feature=", "write KEY=VALUE, not 'feature='"),
        ("x:feature=no_parity", "feature.0: String should match"),
        ("x:sysctl=kernel.x", "write sysctl=NAME=VALUE, not 'sysctl=kernel.x'"),
        ("x:sysctl=../x=1", "sysctl.../x.[key]: String should match"),
        ("x:debugfs=/etc/passwd=1", "String should match"),
        ("x:kernel=7.3,kernel=6.18", "kernel is there twice"),
    ],
)
def test_words_that_are_wrong(text: str, complaint: str) -> None:
    with pytest.raises(HeddleError) as caught:
        variant.parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("variants", "more", "complaint"),
    [
        (["x:kernel=5.4"], {}, "variant 'x': unknown kernel '5.4'; known: 7.3"),
        (["x:sched=/nonexistent/scx"], {}, "variant 'x': scheduler 'scx': /nonexistent/scx: no such file"),
        (["x:sched=scx_absent -v"], {}, "no program 'scx_absent' in bin/ or in the guest image"),
        (["x:sched='"], {}, "variant 'x': sched: No closing quotation"),
        (["scx_heddle:feature=A"], {}, "variant 'scx_heddle' runs eevdf, not the scheduler of this name"),
        (["x:param=lod=1"], {}, "variant 'x': param: lod: no workload here has this parameter; known: groups"),
        (["x:param=load=much"], {}, "parameter 'load' is a number"),
    ],
)
def test_variants_that_cannot_be_measured(
    cache: Path, variants: list[str], more: dict[str, object], complaint: str
) -> None:
    assert cache
    with pytest.raises(HeddleError) as caught:
        measured(*variants, **more)
    assert complaint in str(caught.value)


def test_settings_reach_the_guest_before_its_job(cache: Path) -> None:
    assert cache
    (cell,) = measured(ALL)
    guest = cell.guest()
    steps = guest.job.steps
    written = [(step.action.path, step.action.value) for step in steps if isinstance(step.action, Write)]
    assert written == [
        ("/proc/sys/kernel/sched_rt_runtime_us", "-1"),
        ("/sys/kernel/debug/sched/features", "NO_RUN_TO_PARITY"),
        ("/sys/kernel/debug/sched/base_slice_ns", "700000"),
    ]
    assert [step.name for step in steps[3:]] == [OFFSET_STEP, "hackbench"]
    assert steps[-1].env["A"] == "b=c"
    assert guest.boot_parameters == ("isolcpus=1,2 nohz=off",)
    assert str(cell.inputs()["command_line"]).endswith(" isolcpus=1,2 nohz=off")
    assert guest.job.scheduler is not None
    assert guest.job.scheduler.argv == ["hackbench", "1"]
    assert (cell.params["load"], cell.values["load"]) == (1.25, 2.0)


def test_a_variant_without_settings_is_the_scheduler_alone(cache: Path) -> None:
    """What was measured of a scheduler is found whatever the variant is called."""
    assert cache
    plain = measured(schedulers=["eevdf", "hackbench=hackbench 1"])
    named = measured("base", "tuned:sched=hackbench 1")
    assert [cell.key() for cell in named] == [cell.key() for cell in plain]
    assert [cell.contestant.name for cell in named] == ["base", "tuned"]


@pytest.mark.parametrize("setting", ALL.removeprefix("x:").replace("1,2 ", "1 ").split(","))
def test_every_setting_makes_another_cell(cache: Path, setting: str) -> None:
    other = cache / "other"
    other.mkdir()
    setting = setting.replace("kernel=7.3", f"kernel={tree(other, b'')}")
    plain, changed = measured("base", f"x:{setting}")
    assert changed.key() != plain.key()


def test_a_file_says_the_same(cache: Path) -> None:
    assert cache
    table = Variant(name="slow", debugfs={"sched/base_slice_ns": "3000000"})
    written = Experiment.model_validate(
        {
            "name": "e",
            "summary": "",
            "machines": ["smp-4"],
            "kernels": ["7.3"],
            "variants": [{"name": "base"}, {"name": "slow", "debugfs": {"sched/base_slice_ns": 3000000}}],
            "workloads": [{"name": "hackbench"}],
            "seeds": 1,
        }
    )
    assert written.variants[1] == table
    typed = measured("base", "slow:debugfs=sched/base_slice_ns=3000000")
    assert [cell.key() for cell in written.cells()] == [cell.key() for cell in typed]


def test_schedulers_come_before_variants(cache: Path) -> None:
    assert cache
    found = measured("x:feature=A", schedulers=["eevdf"])
    assert [cell.contestant.name for cell in found] == ["eevdf", "x"]


def test_kernels_of_the_variants_stand_for_the_runs(cache: Path) -> None:
    one, other = tree(cache / "one", b""), cache / "other"
    other.mkdir()
    (other / "bzImage").write_bytes(bzimage("6.98.0-other"))
    (other / "config").write_text("CONFIG_HZ=250\n")
    found = measured(f"old:kernel={one}", f"new:kernel={other}/bzImage", kernels=["nosuch"])
    assert [(cell.kernel.name, cell.booted.name) for cell in found] == [
        ("6.99.0-mine", "6.99.0-mine"),
        ("6.99.0-mine", "6.98.0-other"),
    ]
    found = measured("base", f"new:kernel={one}")
    assert [(cell.kernel.name, cell.booted.name) for cell in found] == [("7.3", "7.3"), ("7.3", "6.99.0-mine")]


def test_a_built_tree_is_a_kernel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tree(cache / "linux", b"")
    found = kernels.find(built)
    assert (found.name, found.release, found.option) == ("6.99.0-mine", "6.99.0-mine", built)
    assert found.hz == 250
    monkeypatch.chdir(built)
    assert kernels.find(".").image == found.image
    Path(built, ".config").unlink()
    with pytest.raises(HeddleError, match=r"no .config: not a tree where `make bzImage` built a kernel"):
        kernels.find(built)
    with pytest.raises(HeddleError, match=r"no arch/x86/boot/bzImage: not a tree where `make bzImage` built"):
        kernels.find(str(cache))


def test_rows_name_variants_and_their_kernels(cache: Path) -> None:
    emulator = Emulator(cache)
    one = tree(cache / "one", b"")
    out = emulator.cache / "out"
    machine = ["--machine", str(emulator.machine), "--workload", "hackbench", "--seeds", "6", "--out", str(out)]
    sides = ["--variant", "old", "--variant", f"new:kernel={one},param=load=2"]
    done = subprocess.run(
        [sys.executable, "-m", "heddle_lab", "run", "--cold", *machine, *sides],
        env=emulator.environment(),
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = resultfile.read(out)
    assert {(cell.variant, cell.sched, cell.provenance["kernel"]) for cell in found} == {
        ("old", "eevdf", "7.3"),
        ("new", "eevdf", "6.99.0-mine"),
    }
    assert "new against old on plain-4, Linux 6.99.0-mine against 7.3, 6 paired seeds" in done.stdout
    row = comparison.variants(found)[0]
    assert (row.baseline, row.candidate, row.result.pairs) == ("old", "new", 6)
    assert "--kernel 7.3 --workload hackbench" in row.command()
    assert f"--variant old: --variant new:kernel={one},param=load=2 --seeds 6" in row.command()
    page = (out / "report.html").read_text()
    assert f"new:kernel={one},param=load=2" in page


def changed(run: list[CellResult], names: dict[str, object], **provenance: object) -> list[CellResult]:
    return [
        cell.model_copy(update={**names, "provenance": cell.provenance | provenance | {"cell": f"{cell.seed}"}})
        for cell in run
    ]


@pytest.mark.parametrize(
    ("names", "provenance", "differs"),
    [
        ({"kernel": "7.3-x"}, {"kernel": "7.3-x"}, "kernel: 7.3 → 7.3-x"),
        ({"machine": "smp-8"}, {}, "machine: smp-4 → smp-8"),
        ({"variant": "tuned"}, {"variant": {"feature": ["A"]}}, "feature A: as it is → set"),
        ({}, {"variant": {"sysctl": {"a.b": "1"}}}, "sysctl a.b: as it is → 1"),
    ],
)
def test_two_runs_are_compared_over_what_differs(
    names: dict[str, object], provenance: dict[str, object], differs: str
) -> None:
    before = cells(schedulers=("eevdf",))
    slower = [
        cell.model_copy(update={"metrics": cell.metrics | {"elapsed_ns": 2 * cell.metrics["elapsed_ns"]}})
        for cell in before
    ]
    after = changed(slower, names, **provenance)
    rows = comparison.runs(before, after)
    assert {row.verdict for row in rows if row.primary} == {Verdict.WORSE}
    assert len(rows) == 4
    assert comparison.unpaired(before, after) == []
    pairs = [pair for paired in comparison.partners(before, after) for pair in paired]
    assert differs in differences.lines(pairs)


def test_what_has_several_values_is_not_compared_over() -> None:
    before = cells(schedulers=("eevdf", "scx_heddle"))
    after = [cell.model_copy(update={"variant": "other"}) for cell in before if cell.sched == "scx_heddle"]
    assert comparison.runs(before, after) == []
    assert len(comparison.unpaired(before, after)) == len(before)


def test_what_differs_in_files_is_said() -> None:
    before = cells(schedulers=("mine",))
    inputs = before[0].provenance["inputs"]
    left = inputs | {"scheduler": {"argv": ["/usr/local/bin/mine"], "sha256": "aa" * 32}}
    right = left | {
        "scheduler": {"argv": ["/usr/local/bin/mine", "-v"], "sha256": "bb" * 32},
        "qemu": "dd",
        "command_line": "quiet nosmt",
    }
    pairs = list(zip(*(changed(before, {}, inputs=one) for one in (left, right)), strict=True))
    assert differences.lines(pairs) == [
        "QEMU: sha256 bb → sha256 dd",
        "kernel arguments: +nosmt",
        "scheduler: /usr/local/bin/mine → /usr/local/bin/mine -v",
        "scheduler program: sha256 aaaaaaaaaaaa → sha256 bbbbbbbbbbbb",
    ]


def test_schedulers_of_commands() -> None:
    assert scheduler.of_command("eevdf").argv == []
    assert scheduler.of_command("hackbench 1").name == "hackbench"
    with pytest.raises(HeddleError, match="no command in ' '; write eevdf"):
        scheduler.of_command(" ")
