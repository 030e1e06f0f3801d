"""What a guest finds in memory that no snapshot holds; the same layout as `lab/guest/src/agent/payload.rs`.

The memory has two parts. The guest reads the first when it has booted, the second when its scheduler is attached. A
part is a page whose first 8 bytes are the length of the archive that follows it (little-endian), and a tar archive.
"""

import io
import tarfile
from pathlib import Path

from heddle_lab.errors import HeddleError

Files = dict[str, tuple[int, bytes]]
"""absolute path in the guest -> (permission bits, content)"""

PART_BYTES = 128 << 20
SIZE_BYTES = 2 * PART_BYTES

_PAGE = 4096


def pack(files: Files) -> bytes:
    """Return an archive of files; its bytes depend on the argument alone."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, (mode, content) in sorted(files.items()):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode, member.size = mode, len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def write(path: Path, start: bytes, job: bytes) -> None:
    """Write the file that backs the memory; the rest of it takes no room on the disk.

    Args:
        path: the file.
        start: archive of the first part, for the start of the scheduler.
        job: archive of the second part.

    Raises:
        OSError: the disk is full or not writable.
        HeddleError: a part is too large.
    """
    for archive in (start, job):
        _refuse_beyond_room(len(archive))
    with path.open("wb") as file:
        file.truncate(SIZE_BYTES)
        for number, archive in enumerate((start, job)):
            file.seek(number * PART_BYTES)
            file.write(len(archive).to_bytes(8, "little"))
            file.seek(number * PART_BYTES + _PAGE)
            file.write(archive)


def check(files: Files) -> None:
    """Make sure that a part has room for files.

    Raises:
        HeddleError: it has not; states the sizes.
    """
    _refuse_beyond_room(sum(len(content) for _, content in files.values()))


def _refuse_beyond_room(size: int) -> None:
    if size + _PAGE > PART_BYTES:
        raise HeddleError(f"the guest is given {size >> 20} MiB of files, but has room for 127 MiB")
