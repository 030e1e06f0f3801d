"""The guest's userland as a folder of this machine, and the mounts that make it one that programs can run in."""

import ctypes
import os
import shutil
from pathlib import Path

from heddle_lab import cpio, hashing, image, paths
from heddle_lab.errors import HeddleError

FOLDERS = ("tmp", "run", "dev/shm")
"""that are memory of their own, as in a guest"""

_LIBC = ctypes.CDLL(None, use_errno=True)

_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
"""of mount(2)"""

_SHARED = ("dev", "sys")
"""of this machine"""


def unpacked(layers: tuple[str, ...]) -> Path:
    """Return a folder with the userland of some image layers; it is unpacked once and kept in the cache.

    Raises:
        HeddleError: a layer is unknown, or the disk is full.
    """
    archives = image.layer_files(layers)
    folder = paths.cache() / "trees" / hashing.of_data([hashing.of_file(archive) for archive in archives])
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        for archive in archives:
            cpio.unpack(archive, unfinished)
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.is_dir():
            raise HeddleError(f"cannot unpack the guest's userland: {error.strerror} ({error.filename})") from error
    return folder


def mount(tree: Path, scratch: Path) -> Path:
    """Mount a userland that a program may change, with /proc, /sys and /dev; return its root.

    The caller has mount and process namespaces of its own.

    Args:
        tree: what `unpacked` returned; it stays as it is.
        scratch: an empty folder.

    Raises:
        OSError: the kernel refuses a mount.
    """
    _mount("none", Path("/"), "", _RECURSIVE | _PRIVATE)
    _mount("tmpfs", scratch, "tmpfs")
    root, upper, work = (scratch / name for name in ("root", "upper", "work"))
    for folder in (root, upper, work):
        folder.mkdir()
    _mount("overlay", root, "overlay", 0, f"lowerdir={tree},upperdir={upper},workdir={work}")
    for name in _SHARED:
        _mount(f"/{name}", root / name, "", _BIND | _RECURSIVE)
    _mount("proc", root / "proc", "proc")
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
        _mount("tmpfs", root / name, "tmpfs", 0, "mode=1777")
    return root


def _mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    """Call mount(2)."""
    arguments = (source.encode(), str(target).encode(), kind.encode() or None, flags, data.encode() or None)
    if _LIBC.mount(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))
