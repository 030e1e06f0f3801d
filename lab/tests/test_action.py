"""The GitHub Action: its steps, run as a runner runs them, with a stand-in for guests."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from heddle_lab import paths, resultfile
from tests.emulator import Emulator

ACTION: dict[str, Any] = yaml.safe_load((paths.REPOSITORY / "action.yml").read_text(encoding="utf-8"))
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]


@pytest.fixture
def emulator(cache: Path) -> Emulator:
    """Each cell takes a second."""
    stand_in = Emulator(cache)
    records = cache / "records"
    records.write_text(records.read_text().replace('"elapsed_ns": 2', '"elapsed_ns": 1000000000'))
    return stand_in


class Done(NamedTuple):
    status: int
    outputs: str
    summary: str
    said: str


def act(emulator: Emulator, **given: str) -> Done:
    """Run the action's own steps but set-up, up to the first that fails."""
    inputs = {name: about.get("default", "") for name, about in ACTION["inputs"].items()}
    inputs |= {name.replace("_", "-"): value for name, value in given.items()}
    work = emulator.cache / "workspace"
    work.mkdir(exist_ok=True)
    files = {name: work / name for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    common = {"GITHUB_ACTION_PATH": str(paths.REPOSITORY), "GITHUB_WORKSPACE": str(work), "RUNNER_TEMP": str(work)}
    common |= emulator.environment() | {name: str(file) for name, file in files.items()}
    status, said = 0, ""
    for step in (step for step in ACTION["runs"]["steps"] if "run" in step and step["name"] != "Set up"):
        own = {name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)
               for name, text in step.get("env", {}).items()}  # fmt: skip
        assert "${{" not in step["run"] + "".join(own.values()), "what a user writes would be run as a program"
        done = subprocess.run(
            [*BASH, "-c", step["run"]], env=common | own, cwd=work, capture_output=True, text=True, check=False
        )
        status, said = done.returncode, said + done.stdout + done.stderr
        if status:
            break
    return Done(status, files["GITHUB_OUTPUT"].read_text(), files["GITHUB_STEP_SUMMARY"].read_text(), said)


def experiment(emulator: Emulator, seeds: int = 6) -> dict[str, str]:
    """Return inputs that measure one cell for each seed."""
    file = emulator.cache / "it.toml"
    file.write_text(
        f'name = "it"\nsummary = "two words"\nmachines = ["{emulator.machine}"]\nkernels = ["7.3"]\n'
        f'schedulers = ["eevdf"]\nworkloads = [{{ name = "hackbench" }}]\nseeds = {seeds}\n'
    )
    return {"experiment": str(file), "arguments": "--cold --param 'loops=300'"}


def faster(folder: Path, factor: float) -> str:
    """Make a copy of results whose times are a part of what they are; return its folder."""
    cells = [
        cell.model_copy(update={"metrics": cell.metrics | {"elapsed_ns": cell.metrics["elapsed_ns"] * factor}})
        for cell in resultfile.read(folder)
    ]
    return str(resultfile.write(folder.with_name("faster"), cells).parent)


def test_two_runs_without_a_loss(emulator: Emulator) -> None:
    wanted = experiment(emulator)
    done = act(emulator, **wanted, baseline_arguments=wanted["arguments"])
    assert (done.status, done.said.count("none of 1 primary rows is worse")) == (0, 1)
    assert "status=0\n" in done.outputs
    results = emulator.cache / "workspace" / "heddle-results"
    assert "table<<HEDDLE_TABLE\n" in done.outputs
    assert (results / "run" / "table.md").read_text() in done.summary
    assert "none of 1 primary rows is worse" in done.summary
    assert [cell.params["loops"] for cell in resultfile.read(results / "baseline")] == [300] * 6


@pytest.mark.parametrize(
    ("seeds", "says", "fails"),
    [
        (6, 1, {"loss": 1, "undecided": 1, "never": 0}),
        (1, 2, {"loss": 0, "undecided": 2, "never": 0}),
    ],
)
def test_a_loss_fails_where_it_is_to(emulator: Emulator, seeds: int, says: int, fails: dict[str, int]) -> None:
    """One seed tells nothing, and may hide a loss."""
    wanted = experiment(emulator, seeds)
    assert act(emulator, **wanted).outputs.endswith("status=\n")
    before = faster(emulator.cache / "workspace" / "heddle-results" / "run", 0.5)
    for fail_on, status in fails.items():
        done = act(emulator, **wanted, baseline=before, fail_on=fail_on)
        assert (done.status, f"status={says}\n" in done.outputs) == (status, True)


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"baseline": "/nowhere"}, 2, "/nowhere: No such file or directory"),
        ({"baseline": "/nowhere", "fail_on": "never"}, 2, "/nowhere: No such file or directory"),
        ({"fail_on": "always"}, 3, "fail-on: always: write loss, undecided or never"),
        ({"arguments": "--sched 'x"}, 1, "No closing quotation"),
        ({"arguments": "--no-such"}, 1, "--no-such"),
        ({"experiment": "nothing"}, 1, "unknown experiment 'nothing'"),
    ],
)
def test_an_error_fails_whatever_is_asked_for(
    emulator: Emulator, given: dict[str, str], status: int, said: str
) -> None:
    done = act(emulator, **experiment(emulator) | given)
    assert done.status == status
    assert said in done.said


def test_nothing_that_a_user_writes_is_run(emulator: Emulator) -> None:
    evil = emulator.cache / "evil"
    act(emulator, experiment=f"$(touch {evil})", arguments=shlex.quote(f"$(touch {evil})"))
    assert not evil.exists()
