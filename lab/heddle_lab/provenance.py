"""Where a result comes from: what goes beside the numbers so that they can be checked."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

from heddle_lab import paths, sources
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
    """Return a cell's provenance: key, inputs with hashes, versions, units, sources, the flags that repeat it.

    Args:
        cell: the cell.
        flags: of `heddle run`, that it took to measure the cell and its twin.
        judged: unit and direction of metrics beside the workload's own that are compared.
    """
    settings = cell.contestant.variant
    primary = cell.workload.primary(cell.values)
    flags = [*flags, *_given(cell)]
    return {
        "cell": cell.key(),
        "traced_cell": cell.twin().key() if "--trace" in flags else None,
        "measured_step": cell.measured_step,
        "inputs": cell.inputs(),
        "versions": versions(),
        "sources": sources.of_cell(cell),
        "flags": flags,
        "option": cell.contestant.option,
        "variant": settings.model_dump(exclude={"name"}, exclude_defaults=True) if settings else {},
        "kernel": cell.booted.name,
        "kernel_option": cell.kernel.option,
        "kernel_release": cell.booted.release,
        "machine_source": cell.machine.source,
        "workload_source": cell.workload.source,
        **_fidelity(cell),
        "metrics": {
            metric.name: metric.about() | ({"primary": True} if metric.name == primary else {})
            for metric in cell.workload.metrics
            if metric.is_judged(cell.values)
        }
        | judged,
    }


def _given(cell: Cell) -> list[str]:
    """Return what of the command line gives a guest packages and files."""
    load = cell.workload
    options = [*(("--package", name) for name in load.packages), *(("--file", text) for text in load.files)]
    return [word for option in options for word in option]


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
    contestants: Sequence[Sequence[str]],
    seeds: int,
    flags: list[str],
) -> str:
    """Return the command that measures one point again.

    Args:
        machine: its name.
        kernel: as `--kernel` takes it.
        workload: its name.
        params: the workload's parameters.
        contestants: the words that name each, such as `--sched eevdf`.
        seeds: number of seeds.
        flags: such as `--trace`; with a `--backend` machine and kernel are those that it finds.
    """
    place = [] if "--backend" in flags else ["--machine", machine, "--kernel", kernel]
    words = ["bin/heddle", "run", *place, "--workload", workload]
    words += [word for name, value in params.items() for word in ("--param", f"{name}={value}")]
    words += [word for option in contestants for word in option]
    return shlex.join([*words, "--seeds", str(seeds), *flags])
