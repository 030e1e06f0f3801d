"""The guest's userland: cpio layers that setup built."""

from functools import lru_cache
from pathlib import Path, PurePosixPath

from heddle_lab import cpio, paths
from heddle_lab.errors import HeddleError

BASE = "base"


def layer_files(layers: tuple[str, ...]) -> list[Path]:
    """Return the archives that make a userland: the base, then the named layers.

    Raises:
        HeddleError: a layer is unknown; lists the known ones.
    """
    folder = paths.image()
    files = [folder / f"{layer}.cpio" for layer in (BASE, *layers)]
    for file in files:
        if not file.is_file():
            known = ", ".join(sorted(path.stem for path in folder.glob("*.cpio")))
            raise HeddleError(f"unknown image layer '{file.stem}'; known: {known}")
    return files


@lru_cache(maxsize=64)
def _contents(archive: Path) -> frozenset[str]:
    return frozenset(entry.name for entry in cpio.entries(archive))


def contents(layers: tuple[str, ...]) -> frozenset[str]:
    """Return the absolute paths of all files in a userland."""
    return frozenset[str]().union(*(_contents(file) for file in layer_files(layers)))


def has_program(name: str, layers: tuple[str, ...]) -> bool:
    """Tell whether a userland has a program of this name or absolute path."""
    files = contents(layers)
    if name.startswith("/"):
        # Debian's /bin is a link to /usr/bin.
        return name in files or f"/usr{name}" in files
    return any(f"{folder}/{name}" in files for folder in ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"))


def has_library(soname: str, layers: tuple[str, ...]) -> bool:
    """Tell whether a userland has a shared library where the dynamic linker looks."""
    return any(
        PurePosixPath(path).name == soname and path.startswith(("/usr/lib", "/lib")) for path in contents(layers)
    )
