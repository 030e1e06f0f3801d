"""Archives of the kernel's initramfs format, `newc` (Documentation/driver-api/early-userspace/buffer-format.rst)."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

_MAGIC = b"070701"
_HEADER = 110
_TRAILER = "TRAILER!!!"
_DIRECTORY, _FILE, _LINK = 0o040000, 0o100000, 0o120000


class Entry(NamedTuple):
    """One member of an archive."""

    name: str
    mode: int
    """file type and permission bits, as in stat(2)"""
    data: bytes
    offset: int = 0
    """of the content in its file"""
    size: int = 0
    """of the content, bytes"""

    @property
    def kind(self) -> int:
        """File type."""
        return self.mode & 0o170000


def pack(files: dict[str, tuple[int, bytes]]) -> bytes:
    """Return an archive of files and of the directories that they need.

    The bytes depend on the arguments alone: times and owners are zero, members sorted.

    Args:
        files: absolute path in the guest -> (permission bits, content).
    """
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents if str(parent) != "/"}
    members = [Entry(folder, _DIRECTORY | 0o755, b"") for folder in sorted(folders)]
    members += [Entry(path, _FILE | mode, data) for path, (mode, data) in sorted(files.items())]
    archive = b"".join(_member(number, entry) for number, entry in enumerate(members, start=1))
    return archive + _member(0, Entry(_TRAILER, 0, b""))


def _member(inode: int, entry: Entry) -> bytes:
    name = entry.name.lstrip("/").encode() + b"\0"
    links = 2 if entry.mode & 0o170000 == _DIRECTORY else 1
    numbers = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    header = _MAGIC + b"".join(b"%08X" % number for number in numbers)
    return _padded(header + name) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def entries(path: Path) -> Iterator[Entry]:
    """Yield the members of one archive or of several concatenated ones; file contents are left out.

    Raises:
        ValueError: the file is not a newc archive.
    """
    with path.open("rb") as file:
        for name, mode, size in _members(file):
            link = mode & 0o170000 == _LINK
            yield Entry(name, mode, file.read(size) if link else b"", file.tell() - (size if link else 0), size)


def read(path: Path, name: str) -> bytes | None:
    """Return the content of a member by its absolute path, or a link's target; none if there is no such member.

    Raises:
        ValueError: the file is not a newc archive.
    """
    with path.open("rb") as file:
        return next((file.read(size) for member, _, size in _members(file) if member == name), None)


def _members(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield each member's name, mode and size in bytes, with the file at its content."""
    while header := _next_header(file):
        mode, size, name_size = (int(header[6 + 8 * i : 14 + 8 * i], 16) for i in (1, 6, 11))
        name = file.read(name_size)[:-1].decode()
        file.seek(-(_HEADER + name_size) % 4, 1)
        if name == _TRAILER:
            continue
        content = file.tell()
        yield "/" + name.removeprefix("./").lstrip("/"), mode, size
        file.seek(content + size + -size % 4)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the files, folders and links of an archive into a folder; what is there is replaced.

    Raises:
        OSError: the disk is full or not writable.
        ValueError: the file is not a newc archive, or a member lies outside of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as file:
        for entry in entries(archive):
            path = folder / entry.name.lstrip("/")
            if ".." in PurePosixPath(entry.name).parts:
                raise ValueError(f"{archive}: {entry.name} lies outside of the archive")
            if entry.kind == _DIRECTORY:
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(entry.mode & 0o7777)
                continue
            path.unlink(missing_ok=True)
            if entry.kind == _LINK:
                path.symlink_to(entry.data.decode())
            elif entry.kind == _FILE:
                file.seek(entry.offset)
                path.write_bytes(file.read(entry.size))
                path.chmod(entry.mode & 0o7777)


def _next_header(file: BinaryIO) -> bytes:
    """Return the next header, skipping the zeros that may lie between archives; empty at the end."""
    while (start := file.read(4)) == bytes(4):
        pass
    if not start:
        return b""
    header = start + file.read(_HEADER - 4)
    if header[:6] != _MAGIC or len(header) != _HEADER:
        raise ValueError(f"not a newc archive at byte {file.tell() - len(header)}")
    return header
