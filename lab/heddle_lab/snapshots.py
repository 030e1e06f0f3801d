"""Snapshots of guests, kept under the hash of what made them.

A snapshot is a folder that is whole or absent. A process that makes or uses one holds a lock, which the kernel drops
however the process ends: cells, workers and runs share a store, and kill -9 leaves nothing that stays.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

T = TypeVar("T")

LIMIT_BYTES = 8 << 30
"""what the snapshots of a store may take on the disk together"""

_LOCK, _MAKING = ".lock", ".making"


class Snapshots:
    """A store of snapshots."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        """Use a folder; it need not exist.

        Args:
            folder: where the snapshots are.
            limit_bytes: those that were not used for the longest time go when all take more than this on the disk.
        """
        self._folder = folder
        self._limit_bytes = limit_bytes

    @contextmanager
    def held(self, key: str, make: Callable[[Path], T | None]) -> Iterator[Path | T]:
        """Give a snapshot's folder, which stays while the context lasts; the first that asks makes it.

        Args:
            key: the hash of all that decides its content.
            make: fills the folder it is given and returns none, or returns why there is no snapshot.

        Raises:
            OSError: the disk is full or not writable.
        """
        target = self._folder / key
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            with self._locked(key, fcntl.LOCK_SH):
                if target.is_dir():
                    os.utime(target)
                    yield target
                    return
            with self._locked(key, fcntl.LOCK_EX):
                if not target.is_dir() and (instead := self._make(target, make)) is not None:
                    yield instead
                    return

    def _make(self, target: Path, make: Callable[[Path], T | None]) -> T | None:
        making = target.with_suffix(_MAKING)
        shutil.rmtree(making, ignore_errors=True)  # of a process that was killed
        making.mkdir()
        try:
            instead = make(making)
            if instead is None:
                making.rename(target)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        self._evict(keep=target)
        return instead

    def _evict(self, keep: Path) -> None:
        """Remove what is beyond the limit, the longest unused first; snapshots in use and `keep` stay."""
        uses = dict(filter(None, map(_use, self._folder.iterdir())))
        excess = sum(use.disk_bytes for use in uses.values()) - self._limit_bytes
        for path, use in sorted(uses.items(), key=lambda item: item[1]):
            if excess > 0 and path != keep and self._remove(path):
                excess -= use.disk_bytes

    def _remove(self, path: Path) -> bool:
        """Remove a snapshot unless it is in use; tell whether it is gone."""
        try:
            with self._locked(path.stem, fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
                shutil.rmtree(path, ignore_errors=True)  # another process may have done so before
                Path(lock.name).unlink()
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def _locked(self, key: str, how: int) -> Iterator[IO[bytes]]:
        path = self._folder / f"{key}{_LOCK}"
        while True:
            with path.open("ab") as lock:
                fcntl.flock(lock, how)
                # Meanwhile another process may have removed the file: then this is no lock.
                if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                    yield lock
                    return


class _Use(NamedTuple):
    last_ns: int
    disk_bytes: int


def _use(folder: Path) -> tuple[Path, _Use] | None:
    """Return a snapshot with its use; none if it is none, or if another process removes it right now."""
    try:
        if not folder.is_dir():
            return None
        size = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        return folder, _Use(folder.stat().st_mtime_ns, size)
    except FileNotFoundError:
        return None
