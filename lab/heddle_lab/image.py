"""The guest's userland: cpio layers that setup built."""

import io
import subprocess
import sys
from functools import lru_cache
from pathlib import Path, PurePosixPath

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection

from heddle_lab import cpio, paths
from heddle_lab.errors import HeddleError

BASE = "base"


def layer_files(layers: tuple[str, ...]) -> list[Path]:
    """Return the archives that make a userland: the base, then the layers.

    Args:
        layers: names, or what `of_packages` returns.

    Raises:
        HeddleError: a layer is unknown; lists the known ones.
    """
    folder = paths.image()
    files = [folder / layer if "/" in layer else folder / f"{layer}.cpio" for layer in (BASE, *layers)]
    for file in files:
        if not file.is_file():
            known = ", ".join(sorted(path.stem for path in folder.glob("*.cpio")))
            raise HeddleError(f"unknown image layer '{file.stem}'; known: {known}")
    return files


@lru_cache(maxsize=64)
def of_packages(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layer of Debian packages, by its path; set-up downloads and builds it the first time.

    Args:
        packages: their names, without those that they need; none: no layer.

    Raises:
        HeddleError: there is no such package, or it cannot be downloaded.
    """
    if not packages:
        return ()
    command = [sys.executable, "-m", "setup", "layer", *packages]
    done = subprocess.run(command, cwd=paths.REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise HeddleError(f"packages {', '.join(packages)}: {said[-1].removeprefix('setup: ')}")
    return (done.stdout.strip(),)


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


def library_versions(soname: str, layers: tuple[str, ...]) -> frozenset[str]:
    """Return the versions of symbols that a userland's library defines, such as `GLIBC_2.34`; none are known: empty."""
    return frozenset[str]().union(*(_versions(file, soname) for file in layer_files(layers)))


@lru_cache(maxsize=256)
def _versions(archive: Path, soname: str) -> frozenset[str]:
    links = {
        entry.name: entry.data.decode() for entry in cpio.entries(archive) if PurePosixPath(entry.name).name == soname
    }
    for path, target in links.items():
        content = cpio.read(archive, str(PurePosixPath(path).parent / target) if target else path)
        try:
            section = ELFFile(io.BytesIO(content or b"")).get_section_by_name(".gnu.version_d")
        except ELFError:
            continue
        if isinstance(section, GNUVerDefSection):
            return frozenset(name.name for _, names in section.iter_versions() for name in names)
    return frozenset()


def has_library(soname: str, layers: tuple[str, ...]) -> bool:
    """Tell whether a userland has a shared library where the dynamic linker looks."""
    return any(
        PurePosixPath(path).name == soname and path.startswith(("/usr/lib", "/lib")) for path in contents(layers)
    )
