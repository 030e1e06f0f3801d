"""Where a result comes from: what goes beside the numbers so that they can be checked."""

import shlex
import shutil
import subprocess
from functools import lru_cache
from importlib import metadata
from typing import Any

from heddle_lab import paths
from heddle_lab.cell import Cell


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the repository's commit, with `+` if files differ from it; none outside a repository."""
    git = shutil.which("git")
    if git is None or not (paths.REPOSITORY / ".git").exists():
        return None
    head = _output([git, "rev-parse", "HEAD"])
    dirty = _output([git, "status", "--porcelain", "--untracked-files=no"])
    return f"{head}{'+' if dirty else ''}" if head else None


def _output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=paths.REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def versions() -> dict[str, str | None]:
    """Return the commit and the versions of the libraries that compute the statistics."""
    return {"commit": commit(), **{name: metadata.version(name) for name in ("numpy", "scipy")}}


def of_cell(cell: Cell, flags: list[str], judged: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a cell's provenance: key, inputs with hashes, versions, units, sources, the command that repeats it.

    Args:
        cell: the cell.
        flags: of `heddle run`, that it took to measure the cell and its twin.
        judged: unit and direction of metrics beside the workload's own that are compared.
    """
    primary = cell.workload.primary(cell.params)
    return {
        "cell": cell.key(),
        "traced_cell": cell.twin().key() if "--trace" in flags else None,
        "measured_step": cell.measured_step,
        "inputs": cell.inputs(),
        "versions": versions(),
        "command": command(
            cell.machine.name,
            cell.kernel.name,
            cell.workload.name,
            cell.params,
            [cell.scheduler.option],
            cell.seed,
            flags,
        ),
        "flags": flags,
        "sched_option": cell.scheduler.option,
        "kernel_release": cell.kernel.release,
        "machine_source": cell.machine.source,
        "workload_source": cell.workload.source,
        **_fidelity(cell),
        "metrics": {
            metric.name: metric.about() | ({"primary": True} if metric.name == primary else {})
            for metric in cell.workload.metrics
            if metric.is_judged(cell.params)
        }
        | judged,
    }


def _fidelity(cell: Cell) -> dict[str, dict[str, str]]:
    """Return how the replay of a recorded load compares with its trace; nothing of any other workload."""
    found, mismatch = cell.workload.fidelity, cell.workload.mismatch()
    if not found and not mismatch:
        return {}
    return {"fidelity": {"summary": found.summary() if found else "", "mismatch": mismatch}}


def command(
    machine: str,
    kernel: str,
    workload: str,
    params: dict[str, Any],
    scheds: list[str],
    seeds: int,
    flags: list[str],
) -> str:
    """Return the command that measures one point again.

    Args:
        machine: its name.
        kernel: its name.
        workload: its name.
        params: the workload's parameters.
        scheds: schedulers as `--sched` takes them.
        seeds: number of seeds.
        flags: such as `--trace`.
    """
    words = ["bin/heddle", "run", "--machine", machine, "--kernel", kernel, "--workload", workload]
    words += [word for name, value in params.items() for word in ("--param", f"{name}={value}")]
    words += [word for sched in scheds for word in ("--sched", sched)]
    return shlex.join([*words, "--seeds", str(seeds), *flags])
