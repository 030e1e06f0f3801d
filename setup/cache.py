"""Content-named artefacts: hash keys, and folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .report import Progress


def key(*parts: str | bytes | Path) -> str:
    """A 16-digit hex name for PARTS: strings and bytes by value, paths by their file's content.

    Each part is framed by its length, so that moving a character from one part
    to the next gives another key.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        raw = data.encode() if isinstance(data, str) else data
        digest.update(f"{len(raw)}:".encode())
        digest.update(raw)
    return digest.hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """The SHA-256 of the file at PATH, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def building(target: Path, *, resume: bool = False) -> Iterator[Path]:
    """A folder to fill; it becomes TARGET by one rename if the block succeeds.

    With RESUME, what an interrupted attempt left is handed out again instead of
    an empty folder.
    """
    work = target.parent / f".new-{target.name}"
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    yield work
    if target.exists():
        shutil.rmtree(target)
    work.rename(target)


def point(link: Path, target: Path) -> None:
    """Make LINK a symbolic link to TARGET, replacing what it was in one step."""
    wanted = os.path.relpath(target, link.parent) if target.is_relative_to(link.parent) else target
    if link.is_symlink() and link.readlink() == Path(wanted):
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.parent / f".new-{link.name}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(wanted)
    fresh.replace(link)


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write TEXT to PATH by a rename, unless PATH already says just that."""
    if path.is_file() and path.read_text() == text and path.stat().st_mode & 0o777 == mode:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.parent / f".new-{path.name}"
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


@contextmanager
def locked(path: Path, stage: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file PATH; say so under STAGE's name if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(stage, "waiting for another set-up")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
