"""Whether this machine can load scx_heddle, and whether the laboratory is set up: `heddle doctor`."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from heddle_lab import image, kernels, memory, paths
from heddle_lab.errors import HeddleError

PROGRAM = paths.REPOSITORY / "bin" / "scx_heddle"

MEMORY_MIB = 2048
"""for one guest of the smaller machines, with QEMU around it"""

_MISSING, _REMARK = "missing  ", "remark   "

BY_ROOT = frozenset({"root", "capabilities"})
"""what `scx_heddle --check` names that comes with root"""


@dataclass(frozen=True)
class Finding:
    """One thing that is needed."""

    what: str
    missing: str | None = None
    """what to do about it; none: it is there"""

    def __str__(self) -> str:
        """Return a line as `scx_heddle --check` writes them."""
        return f"{_MISSING}{self.what}: {self.missing}" if self.missing else f"ok       {self.what}"


def laboratory() -> Iterator[Finding]:
    """Look for what `heddle run` needs."""
    yield _ask("QEMU with the virtual clock", paths.qemu)
    yield _ask("kernels", _kernels)
    yield _ask("the guest's userland", lambda: image.layer_files(()))
    yield _ask("scx_heddle", _program)
    free_mib = memory.available_mib()
    yield Finding(
        f"{MEMORY_MIB} MiB of memory for a guest",
        None if free_mib >= MEMORY_MIB else f"{free_mib} MiB are free: end other programs, or choose a small machine",
    )


def _ask(what: str, look: Callable[[], object]) -> Finding:
    """Return a finding about what raises an error where it is missing."""
    try:
        look()
    except HeddleError as error:
        return Finding(what, str(error))
    return Finding(what)


def _kernels() -> None:
    if not kernels.known():
        raise HeddleError("none were fetched: run `make setup`")


def _program() -> Path:
    if not PROGRAM.is_file():
        raise HeddleError(f"{PROGRAM} is not there: run `make setup`")
    return PROGRAM


def scheduler() -> tuple[list[str], bool]:
    """Ask scx_heddle whether this machine can load it: its lines, and the answer.

    That its user is not root is a remark, no answer: root would look for the laboratory in another home.
    """
    built = _ask("scx_heddle", _program)
    if built.missing:
        return [str(built)], False
    done = subprocess.run([PROGRAM, "--check"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or done.stderr.splitlines()
    missing = {line: line.removeprefix(_MISSING).partition(":")[0] for line in lines if line.startswith(_MISSING)}
    if "root" not in missing.values():
        return lines, done.returncode == 0
    remarks = [line for line, what in missing.items() if what in BY_ROOT]
    lines = [line.replace(_MISSING, _REMARK, 1) if line in remarks else line for line in lines]
    return lines, done.returncode == 1 and len(remarks) == len(missing)
