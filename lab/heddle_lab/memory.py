"""Memory for guests: a process announces a guest before it starts it, and starts none that would not fit.

A guest touches its memory little by little, so that what is free now says nothing about what its neighbours will
take. So each guest of this host, whatever started it, has an entry in a ledger while it runs: a file that its process
keeps locked, which the kernel unlocks however the process ends.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from heddle_lab.errors import HeddleError

_POLL_S = 0.5


@contextmanager
def reserved(mib: int, ledger: Path) -> Iterator[None]:
    """Hold memory for a guest; waits while others hold what it needs.

    Args:
        mib: what the guest takes at most.
        ledger: the folder of this host's entries; made if it is missing.

    Raises:
        HeddleError: it does not fit although no other guest runs.
    """
    ledger.mkdir(parents=True, exist_ok=True)
    entry = _enter(mib, ledger)
    try:
        yield
    finally:
        _leave(*entry)


def free_mib(ledger: Path) -> int:
    """Return the memory that a new guest could have: what is free less what others hold but have not touched yet."""
    promised = _promised(ledger)
    untouched = sum(max(0, mib - _resident_mib(pid)) for pid, mib in promised.items())
    return max(0, available_mib() - untouched)


def available_mib() -> int:
    """Return what the host could give to new processes without swapping."""
    return int(psutil.virtual_memory().available >> 20)


def _enter(mib: int, ledger: Path) -> tuple[Path, int]:
    """Make an entry as soon as it fits; return it with the descriptor that keeps it locked."""
    while True:
        with (ledger / "lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            free = free_mib(ledger)
            if mib <= free:
                return _lock(ledger / f"{os.getpid()}-{time.monotonic_ns()}.mib", mib)
            if not _promised(ledger):
                raise HeddleError(f"not enough memory for one guest: {mib} MiB needed, {free} MiB free")
        time.sleep(_POLL_S)


def _lock(path: Path, mib: int) -> tuple[Path, int]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, f"{os.getpid()} {mib}".encode())
    return path, descriptor


def _leave(path: Path, descriptor: int) -> None:
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _promised(ledger: Path) -> dict[int, int]:
    """Return process -> MiB of the entries whose owners live; the others are removed."""
    held: dict[int, int] = {}
    for path in ledger.glob("*.mib"):
        with suppress(FileNotFoundError), path.open() as entry:
            try:
                fcntl.flock(entry, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # From the open file: by now its owner may have removed it. It is empty while it is being made.
                if words := entry.read().split():
                    pid, mib = map(int, words)
                    held[pid] = held.get(pid, 0) + mib
            else:
                path.unlink(missing_ok=True)
    return held


def _resident_mib(pid: int) -> int:
    """Return what the children of a process, its guests, have touched."""
    total = 0
    try:
        for child in psutil.Process(pid).children(recursive=True):
            total += child.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return total >> 20
