"""Files of this host that a guest is given: programs and data, with the shared libraries that the guest lacks."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from heddle_lab import hashing, image, payload
from heddle_lab.errors import HeddleError

HostFiles = dict[str, Path]
"""absolute path in the guest -> file of the host"""

PROGRAMS = "/usr/local/bin"
"""where a file goes for which no place is named; it is on the guest's PATH"""

LIBRARIES = "/usr/lib"
"""where the host's libraries go: the dynamic linker looks there last, so they replace none of the guest's"""

_KERNELS_OWN = ("/dev", "/heddle", "/proc", "/sys")
"""folders of the guest that are not files of ours"""

_LONGEST_FIRST_LINE = 256
"""bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE)"""


def located(text: str, folder: Path) -> str:
    """Return `HOST[:GUEST]` with the host's path seen from a folder, such as that of the file that says so."""
    host, colon, guest = _split(text)
    return f"{folder / Path(host).expanduser()}{colon}{guest}"


def named(texts: Sequence[str]) -> HostFiles:
    """Return the files that users name: `HOST[:GUEST]`, a file or a folder with all that is in it.

    Without a place, or with one that ends in `/`, the file keeps its name: in `PROGRAMS`, or there.

    Raises:
        HeddleError: there is no such file, its place is none, or two files have one place.
    """
    found: HostFiles = {}
    for text in texts:
        for guest, host in _members(text):
            if found.setdefault(guest, host) != host:
                raise HeddleError(f"files: {found[guest]} and {host} are both to be {guest} in the guest")
    return found


def program(name: str, files: HostFiles) -> Path | None:
    """Return the file that a command's first word means in the guest, none if it is not among them."""
    return files.get(name) if "/" in name else files.get(f"{PROGRAMS}/{name}")


def with_libraries(files: HostFiles, layers: tuple[str, ...], what: str) -> HostFiles:
    """Return files, and the shared libraries of this host that their programs need and a userland lacks.

    Args:
        files: of programs and data.
        layers: of the userland.
        what: names the files in errors, such as `scheduler 'mine'`.

    Raises:
        HeddleError: names the libraries that neither has, or the version that the guest's library has not.
    """
    found = dict(files)
    for program in files.values():
        for library, path in _libraries(program, layers, what):
            found.setdefault(f"{LIBRARIES}/{library}", path)
    return found


def contents(files: HostFiles) -> payload.Files:
    """Return the files as the guest is given them.

    Raises:
        HeddleError: one cannot be read.
    """
    try:
        return {guest: (_mode(host), host.read_bytes()) for guest, host in files.items()}
    except OSError as error:
        raise HeddleError(f"{error.filename}: {error.strerror}") from error


def fingerprint(files: HostFiles) -> dict[str, Any]:
    """Return what of the files can change a result: their places, permissions and hashes."""
    return {guest: [f"{_mode(host):o}", hashing.of_file(host)] for guest, host in sorted(files.items())}


def check_program(program: Path, layers: tuple[str, ...], what: str) -> None:
    """Make sure that the guest's kernel can execute a file: a program for x86-64, or a script.

    Args:
        program: the file.
        layers: of the userland.
        what: names the file in errors.

    Raises:
        HeddleError: it cannot; says why.
    """
    with program.open("rb") as file:
        first = file.readline(_LONGEST_FIRST_LINE)
    if not os.access(program, os.X_OK):
        raise HeddleError(f"{what}: {program} is not executable; name a program, or run chmod +x")
    if first.startswith(b"#!"):
        interpreter = (first[2:].split() or [b""])[0].decode(errors="replace")
        if not image.has_program(interpreter, layers):
            raise HeddleError(f"{what}: {program} is a script for '{interpreter}', which the guest image lacks")
    elif not first.startswith(b"\x7fELF"):
        raise HeddleError(f"{what}: {program} is no program: it is not an ELF file, and no script that begins with #!")


def _split(text: str) -> tuple[str, str, str]:
    host, colon, guest = re.fullmatch(r"(.*?)(?:(:)(/.*))?", text, re.DOTALL).groups("")  # type: ignore[union-attr]
    return host, colon, guest


def _members(text: str) -> Iterator[tuple[str, Path]]:
    """Yield the files that a text names: place in the guest, file of the host."""
    host, _, place = _split(text)
    path = Path(host).expanduser()
    if not host or not path.exists():
        raise HeddleError(f"files: {host or text}: no such file; write HOST or HOST:/PLACE/IN/GUEST")
    if not place or place.endswith("/"):
        place = f"{place.rstrip('/') or PROGRAMS}/{path.resolve().name}"
    place = os.path.normpath(place)
    if any(f"{place}/".startswith(f"{own}/") for own in _KERNELS_OWN):
        raise HeddleError(f"files: {text}: {place} is not a place for files in the guest")
    if path.is_file():
        yield place, path.resolve()
        return
    for member in sorted(path.rglob("*")):
        if member.is_file():
            yield f"{place}/{member.relative_to(path)}", member.resolve()


def _mode(path: Path) -> int:
    return 0o755 if os.access(path, os.X_OK) else 0o644


class _Needs(NamedTuple):
    """What an ELF file says of the libraries that it is linked with."""

    libraries: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]
    """library -> versions of its symbols, such as `GLIBC_2.34`"""
    interpreter: str | None


def _libraries(program: Path, layers: tuple[str, ...], what: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each library that a program needs, by itself or for another, and the guest lacks."""
    known: dict[str, Path] = {}
    waiting = [program]
    while waiting:
        file = waiting.pop()
        needs = _needs(file)
        own = _of_host(program) if needs.libraries else {}
        lacking = [name for name in needs.libraries if not image.has_library(name, layers)]
        absent = [name for name in lacking if name not in own]
        if absent:
            raise HeddleError(
                f"{what}: {file} needs {', '.join(absent)}, which neither the guest nor this host has; "
                f"link it statically, or add it by `files` or --file PATH:{LIBRARIES}/{absent[0]}"
            )
        _refuse_other_builds(file, needs, layers, what)
        for name in lacking:
            if name not in known:
                known[name] = own[name]
                waiting.append(own[name])
    yield from known.items()


def _refuse_other_builds(program: Path, needs: _Needs, layers: tuple[str, ...], what: str) -> None:
    """Refuse a program that no guest can start: one for another dynamic linker, or for newer libraries."""
    remedy = "link it statically, or build it on the guest's release of Debian"
    if needs.interpreter and not image.has_program(needs.interpreter, layers):
        raise HeddleError(f"{what}: {program} is for the dynamic linker {needs.interpreter}; {remedy}")
    for library, wanted in needs.versions.items():
        have = image.library_versions(library, layers)
        newer = [version for version in wanted if have and version not in have]
        if newer:
            raise HeddleError(f"{what}: {program} needs {newer[-1]} of {library}, newer than the guest's; {remedy}")


def _needs(path: Path) -> _Needs:
    """Return what a file needs; nothing if it is linked statically or no ELF file."""
    status = path.stat()
    return _read_needs(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1024)
def _read_needs(path: Path, _mtime_ns: int, _size: int) -> _Needs:
    nothing = _Needs((), {}, None)
    with path.open("rb") as file:
        try:
            elf = ELFFile(file)
        except ELFError:
            return nothing
        dynamic = elf.get_section_by_name(".dynamic")
        if not isinstance(dynamic, DynamicSection):
            return nothing
        names = [str(tag.needed) for tag in dynamic.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]  # set by type
        headers = [segment for segment in elf.iter_segments() if segment.header.p_type == "PT_INTERP"]
        interpreter = headers[0].get_interp_name() if headers else None  # type: ignore[attr-defined]  # set by type
        return _Needs(tuple(names), _version_needs(elf), interpreter)


def _version_needs(elf: ELFFile) -> dict[str, tuple[str, ...]]:
    section = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return {}
    return {str(need.name): tuple(each.name for each in versions) for need, versions in section.iter_versions()}


def _of_host(program: Path) -> dict[str, Path]:
    """Return what the host's dynamic linker would load for a program: library -> file."""
    status = program.stat()
    return _listed(program, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _listed(program: Path, _mtime_ns: int, _size: int) -> dict[str, Path]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {found[1]: Path(found[2]) for found in re.finditer(r"^\s*(\S+) => (/\S+) \(0x", said, re.MULTILINE)}
