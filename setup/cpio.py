"""The newc cpio format, as the kernel's initramfs reads it.

Source: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's tree.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

MAGIC = b"070701"
TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """A file: `mode` with its type bits; `data` is the content, or a symbolic link's target."""

    mode: int
    data: bytes = b""


def directory(mode: int = 0o755) -> Entry:
    """A folder with permissions MODE."""
    return Entry(stat.S_IFDIR | mode)


def file(data: bytes, mode: int = 0o644) -> Entry:
    """A regular file with content DATA and permissions MODE."""
    return Entry(stat.S_IFREG | mode, data)


def symlink(target: str) -> Entry:
    """A symbolic link to TARGET."""
    return Entry(stat.S_IFLNK | 0o777, target.encode())


def write(out: BinaryIO, entries: Mapping[str, Entry]) -> None:
    """Write ENTRIES (path without a leading slash -> file) to OUT as one archive.

    The archive depends on ENTRIES alone: sorted by path, so that a folder comes
    before what is in it; all owned by root; no time stamps; inodes counted from 1.
    """
    for inode, path in enumerate(sorted(entries), start=1):
        _write_entry(out, inode, path, entries[path])
    _write_entry(out, 0, TRAILER, Entry(0))


def _write_entry(out: BinaryIO, inode: int, path: str, entry: Entry) -> None:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    # inode, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor,
    # rdevminor, namesize, check
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    out.write(_padded(MAGIC + b"".join(b"%08X" % field for field in fields) + name))
    out.write(_padded(entry.data))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def parents(path: str) -> Iterator[str]:
    """The folders above PATH, the topmost first."""
    parts = path.split("/")[:-1]
    for i in range(1, len(parts) + 1):
        yield "/".join(parts[:i])
