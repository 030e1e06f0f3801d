"""A file tree in memory, put together from Debian packages, without their scripts."""

from __future__ import annotations

import fnmatch
import re
import tarfile
from pathlib import Path

from . import archive, cpio
from .cpio import Entry

# Debian's merged /usr: these names at the top are links that base-files ships.
MERGED = ("bin", "sbin", "lib", "lib64")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class Tree:
    """Paths without a leading slash, and the files they name."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.entries: dict[str, Entry] = {}

    def add(self, path: str, entry: Entry) -> None:
        """Put ENTRY at PATH, with the folders above it."""
        path = _merged(path)
        for parent in cpio.parents(path):
            self.entries.setdefault(parent, cpio.directory())
        self.entries[path] = entry

    def add_package(self, deb: Path) -> None:
        """Add the files of package DEB."""
        with archive.opened(deb) as tar:
            for member in tar:
                path = member.name.removeprefix("./").strip("/")
                # A package that ships /bin/x of its own means /usr/bin/x.
                if path in {"", "."} or (path in MERGED and member.isdir()):
                    continue
                if entry := _entry(tar, member):
                    self.add(path, entry)

    def add_source(self, tarball: Path, folder: str) -> None:
        """Add the upstream source TARBALL below FOLDER, without its own topmost folder."""
        with tarfile.open(tarball) as tar:
            for member in tar:
                _, _, path = member.name.removeprefix("./").partition("/")
                if path and (entry := _entry(tar, member)):
                    self.add(f"{folder}/{path}", entry)

    def drop(self, patterns: list[str]) -> None:
        """Remove what the absolute globs PATTERNS match; a folder goes with its contents."""
        globs = [re.compile(fnmatch.translate(p.strip("/"))) for p in patterns]
        for path in list(self.entries):
            if any(glob.match(p) for glob in globs for p in (path, *cpio.parents(path))):
                del self.entries[path]

    def link_libraries(self) -> None:
        """Make shared libraries in subfolders visible to the dynamic linker.

        A package's trigger would run ldconfig; its cache file knows one set of
        packages only, and here each layer is a set. Links add up.
        """
        library = re.compile(rf"^{LIBRARIES}/[^/]+/(lib[^/]+\.so\.[^/]+)$")
        for path in list(self.entries):
            if (found := library.match(path)) and f"{LIBRARIES}/{found[1]}" not in self.entries:
                target = path.removeprefix(f"{LIBRARIES}/")
                self.entries[f"{LIBRARIES}/{found[1]}"] = cpio.symlink(target)


def _merged(path: str) -> str:
    top, slash, rest = path.partition("/")
    return f"usr/{top}/{rest}" if slash and top in MERGED else path


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry | None:
    """MEMBER as a cpio entry; devices and sockets are the kernel's business (devtmpfs)."""
    if member.isdir():
        return cpio.directory(member.mode)
    if member.issym():
        return cpio.symlink(member.linkname)
    if member.islnk():
        # A hard link would need its twin in the same archive, which `drop` may remove.
        return cpio.symlink("/" + _merged(member.linkname.removeprefix("./")))
    if member.isfile():
        content = tar.extractfile(member)
        return cpio.file(content.read() if content else b"", member.mode)
    return None
