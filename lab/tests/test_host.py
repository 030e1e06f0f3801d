"""The back end `host`: the same job, on this machine."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from heddle_lab import backends, cpio, paths, resultfile
from heddle_lab.backends import host
from heddle_lab.cli import cli
from heddle_lab.errors import HeddleError
from heddle_lab.job import CgroupSet, Job, KillStep, Read, Sleep, Step, Write
from heddle_lab.native import cgroups
from heddle_lab.native import run as native
from heddle_lab.results import Results

SPIN = """
name = "spin"
summary = "one hog"
source = "test"

[params.for_ms]
default = 20
unit = "ms"
summary = "length"

[[steps]]
name = "spin"
argv = ["heddle-load", "spin", "--threads", "1", "--for-ms", "{{ for_ms }}", "--warm-up-ms", "0"]
{more}

[[metrics]]
name = "iterations"
step = "spin"
unit = "iterations"
better = "higher"
value = "threads | map(attribute='iterations') | sum"
"""


@pytest.fixture
def load(tmp_path: Path) -> str:
    path = tmp_path / "spin.toml"
    path.write_text(SPIN.replace("{more}", ""))
    return str(path)


def measure(load: str, folder: Path, *options: str) -> Result:
    command = ["run", "--backend", "host", "--workload", load, "--sched", "eevdf", "--out", str(folder), *options]
    return CliRunner().invoke(cli, command, standalone_mode=False)


def carried_out(*steps: Step) -> Results:
    return native.run(
        Job(steps=list(steps), timeout_ns=30_000_000_000), (), {"/root/mine": (0o755, b"#!/bin/sh\necho mine\n")}
    )


def test_a_job_gives_the_records_that_a_guest_gives() -> None:
    results = carried_out(
        Step(name="text", argv=["sh", "-c", "read line; echo $line $HEDDLE_SEED $HOME; pwd"], stdin="given\n"),
        Step(name="file", argv=["/root/mine"]),
        Step(name="hog", argv=["heddle-load", "spin", "--threads", "1", "--for-ms", "60000"], background=True),
        Step(name="wait", action=Sleep(ns=20_000_000)),
        Step(name="end", action=KillStep(step="hog")),
        Step(name="read", action=Read(path="/proc/sys/kernel/ostype")),
        Step(name="only", argv=["nproc"], cpus="0"),
        Step(name="fails", argv=["sh", "-c", "exit 3"], expect_exit=3),
    ).check()
    [ready], [conditions] = results.of("ready"), results.of("conditions")
    assert ready["cpus"] == len(ready["topology"]) == os.cpu_count()
    assert results.step("text").stdout == "given 1 /root\n/\n"
    assert results.step("file").stdout == "mine\n"
    assert results.step("hog").signal == 9
    assert results.step("wait").elapsed_ns >= 20_000_000
    assert results.step("read").stdout == "Linux\n"
    assert results.step("only").stdout == "1\n"
    assert results.step("text").counters["switches"] > 0
    assert conditions["load_average"] >= 0
    assert [step.name for step in results.steps()] == ["text", "file", "wait", "hog", "end", "read", "only", "fails"]


FAULTS = {
    "exit": (
        Step(name="bad", argv=["sh", "-c", "echo no luck >&2; exit 3"]),
        "step 'bad': exited with 3, not 0: no luck",
    ),
    "signal": (Step(name="bad", argv=["sh", "-c", "kill -9 $$"]), "step 'bad': was killed by signal 9"),
    "time": (Step(name="bad", argv=["sleep", "60"], timeout_ns=50_000_000), "step 'bad': timed out after "),
    "program": (Step(name="bad", argv=["nothing-like-this"]), "step 'bad': No such file or directory"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_fails_ends_the_job_with_one_line(fault: str) -> None:
    step, complaint = FAULTS[fault]
    results = carried_out(step, Step(name="after", argv=["true"]))
    assert str(results.error).startswith(complaint)
    assert "after" not in [step.name for step in results.steps()]
    assert results.of("done")


def test_what_a_job_leaves_is_gone() -> None:
    marks = [
        carried_out(Step(name="mark", argv=["sh", "-c", "ls -d /mark /tmp/mark; touch /mark /tmp/mark; sleep 99 &"]))
        for _ in range(2)
    ]
    assert [result.step("mark").stdout for result in marks] == [""] * 2
    assert not Path("/mark").exists()


def test_a_run_names_its_back_end_and_goes_on_where_it_stopped(load: str, tmp_path: Path) -> None:
    assert measure(load, tmp_path / "run", "--seeds", "1").return_value == 0
    [first] = resultfile.read(tmp_path / "run")
    assert (first.backend, first.provenance["inputs"]["backend"]) == ("host", "host")
    assert first.metrics["iterations"] > 0
    assert "host.load_average" in first.metrics
    assert first.provenance["flags"] == ["--backend", "host"]

    again = measure(load, tmp_path / "run", "--seeds", "2")
    assert "1 cell to measure, 1 stored" in again.stderr
    assert resultfile.read(tmp_path / "run")[0].metrics == first.metrics
    assert "Measured by wall time" in again.stdout
    assert "back end" in (tmp_path / "run" / "report.html").read_text().lower()

    assert "2 cells to measure, 0 stored" in measure(load, tmp_path / "run", "--seeds", "2", "--fresh").stderr
    assert "1 cell to measure, 0 stored" in measure(load, tmp_path / "other", "--seeds", "1").stderr


def test_its_cells_are_not_in_the_store_of_guests(load: str, tmp_path: Path) -> None:
    measure(load, tmp_path / "run", "--seeds", "1")
    [cell] = resultfile.read(tmp_path / "run")
    key = cell.provenance["cell"]
    assert (tmp_path / "run" / host.STORE / key[:2] / f"{key}.json.zst").is_file()
    assert not (paths.cells() / key[:2] / f"{key}.json.zst").exists()


def test_contestants_follow_each_other_and_turn_round() -> None:
    class Contestant:
        def __init__(self, seed: int, name: str) -> None:
            self.seed, self.point, self.name = seed, "point", name

    cells = [Contestant(seed, name) for seed in (1, 2, 3) for name in ("a", "b")]
    assert "".join(cell.name for cell in host._interleaved(cells)) == "abbaab"  # type: ignore[misc, arg-type]  # noqa: SLF001


REFUSED = {
    "--trace": "--trace and --robust take a guest",
    "--cold": "--jobs, --dask and --cold take a guest",
    "--jobs 2": "--jobs, --dask and --cold take a guest",
    "--kernel 7.3": "--kernel 7.3: the host back end measures the kernel that runs; leave it out",
    "--machine xeon-4s-192": "--machine xeon-4s-192: it is not this machine: 192 CPUs in 4 LLCs",
}


@pytest.mark.parametrize("option", REFUSED)
def test_what_takes_a_guest_is_refused(option: str, load: str, tmp_path: Path) -> None:
    assert str(measure(load, tmp_path, *option.split()).exception).startswith(REFUSED[option])


def test_no_setting_of_this_machine_is_changed() -> None:
    step = Step(name="set", action=Write(path="/proc/sys/kernel/sched_rt_runtime_us", value="1"))
    assert host.unfit(step) == "writes /proc/sys/kernel/sched_rt_runtime_us, a setting of this machine"
    io = Step(name="set", action=CgroupSet(cgroup="group", file="io.max", value="max"))
    assert host.unfit(io) == "sets io.max, which is not one of cpu.max, cpu.weight"


READ = " ".join(f"--include=cpu.{name}" for name in ("cfs_quota_us", "shares", "max", "weight"))

GROUPED = (
    Step(name="cap", action=CgroupSet(cgroup="outer/inner", file="cpu.max", value="20000 100000")),
    Step(name="weigh", action=CgroupSet(cgroup="outer", file="cpu.weight", value="50")),
    Step(
        name="in",
        argv=["sh", "-c", f"cat /proc/self/cgroup; exec grep -rsH . /sys/fs/cgroup {READ}"],
        cgroup="outer/inner",
        expect_exit=None,
    ),
)


def test_programs_run_in_groups_that_end_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := cgroups.refusal():
        assert host.unfit(GROUPED[2]) == f"takes a cgroup, and {why}"
        return
    said = carried_out(*GROUPED).check().step("in").stdout
    assert re.search(rf"^\d+:(cpu)?:/heddle-{os.getpid()}/outer/inner$", said, re.MULTILINE)
    quota, weight = {1: ("cfs_quota_us:20000", "shares:512"), 2: ("max:20000 100000", "weight:50")}[
        cgroups.hierarchy().version
    ]
    assert f"outer/inner/cpu.{quota}\n" in said
    assert f"outer/cpu.{weight}\n" in said
    assert not (cgroups.hierarchy().root / f"heddle-{os.getpid()}").exists()

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert host.unfit(GROUPED[2]) == "takes a cgroup, and only root may make groups"


MOUNTS = {
    "version 1": ("cgroup {root} cgroup rw,cpu 0 0", "cpu", 1),
    "version 2": ("cgroup2 {root} cgroup2 rw 0 0", "cpu memory", 2),
    "neither": ("cgroup2 {root} cgroup2 rw 0 0", "memory", None),
}


@pytest.mark.parametrize("case", MOUNTS)
def test_the_cpu_controller_is_found(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, controllers, version = MOUNTS[case]
    (tmp_path / "mounts").write_text(f"{line.format(root=tmp_path)}\n")
    (tmp_path / "cgroup.subtree_control").write_text(controllers)
    monkeypatch.setattr(cgroups, "_MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cgroups.hierarchy.cache_clear()
    try:
        if version is None:
            assert cgroups.refusal() == "no mounted cgroup hierarchy hands on the CPU controller"
        else:
            assert cgroups.hierarchy() == (tmp_path, version)
    finally:
        cgroups.hierarchy.cache_clear()


def test_a_scheduler_needs_sched_ext(load: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SCHED_EXT", tmp_path / "none")
    error = str(measure(load, tmp_path / "run", "--sched", "scx_heddle").exception)
    assert error.startswith("scheduler 'scx_heddle': this kernel (")
    assert "has no sched_ext" in error


def test_kvm_is_refused_with_the_reason(load: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backends, "_KVM", tmp_path / "kvm")
    result = CliRunner().invoke(cli, ["run", "--backend", "kvm", "--workload", load], standalone_mode=False)
    assert isinstance(result.exception, HeddleError)
    assert "this machine has no /dev/kvm" in str(result.exception)


def test_an_archive_unpacks_as_a_kernel_would(tmp_path: Path) -> None:
    (tmp_path / "a.cpio").write_bytes(cpio.pack({"/usr/bin/tool": (0o755, b"tool"), "/etc/text": (0o644, b"text")}))
    cpio.unpack(tmp_path / "a.cpio", tmp_path / "tree")
    tool = tmp_path / "tree/usr/bin/tool"
    assert (tool.read_bytes(), tool.stat().st_mode & 0o777) == (b"tool", 0o755)
    assert (tmp_path / "tree/etc/text").read_text() == "text"
