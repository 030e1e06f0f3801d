"""Compilers newer than the host's, from Debian packages unpacked beside its libc.

Each program gets the unpacked loader as its ELF interpreter and the unpacked
library folders as its RPATH. So it runs as itself (/proc/self/exe is right,
which cargo and clippy rely on), nothing leaks into the environment of the
programs that it starts, and the host's libc is not touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from .. import archive, cache, process
from ..context import Context
from ..pins import Tool
from ..report import SetupError

LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
ELF = b"\x7fELF"


def run(context: Context) -> None:
    """Provide clang, and Rust where the host's is missing, old or without its linters."""
    _provide(context, "clang", context.pins.clang)
    if host_cargo(context) is None:
        _provide(context, "rust", context.pins.rust)
    else:
        for program in context.pins.rust.programs:
            (context.paths.toolchain / "bin" / program).unlink(missing_ok=True)


def host_cargo(context: Context) -> str | None:
    """The host's cargo if it, rustc, clippy and rustfmt are there and new enough."""
    bin_ = context.paths.toolchain / "bin"
    path = os.pathsep.join(
        folder for folder in os.environ.get("PATH", "").split(os.pathsep) if Path(folder) != bin_
    )
    found = {name: shutil.which(name, path=path) for name in context.pins.rust.programs}
    version = process.output([found["rustc"] or "", "--version"]) if all(found.values()) else None
    number = re.match(r"rustc (\d+)\.(\d+)", version or "")
    minimum = tuple(map(int, context.pins.rust_minimum.split(".")))
    if number and (int(number[1]), int(number[2])) >= minimum:
        return found["cargo"]
    return None


def _provide(context: Context, name: str, tool: Tool) -> None:
    """Unpack TOOL and link its programs into toolchain/bin."""
    root = unpack(context, name, tool)
    for program in tool.programs:
        cache.point(context.paths.toolchain / "bin" / program, root / tool.prefix / program)


def unpack(context: Context, name: str, tool: Tool) -> Path:
    """Unpack TOOL, make it run here, and return the folder that it is in."""
    packages = context.packages(name, tool.suites, tool.packages, tool.without)
    digest = cache.key(*(item.file.sha256 for item, _ in packages), repr(tool), Path(__file__))
    root = context.paths.toolchain / f"{name}-{digest}"
    if not root.exists():
        context.say(f"unpacking {name} ({len(packages)} packages)")
        with cache.building(root) as work:
            for _, deb in packages:
                archive.unpack(deb, work)
            _relocate(context, work, root, tool)
        _check(root, tool)
    return root


def _relocate(context: Context, work: Path, root: Path, tool: Tool) -> None:
    """Point the programs in WORK, which will be moved to ROOT, at their own libraries."""
    folders = [root / LIBRARIES, root / "usr/lib/llvm-19/lib"]
    programs = {(work / tool.prefix / program).resolve() for program in tool.programs}
    for program in sorted(filter(_is_elf, programs)):
        context.run(
            ["patchelf", "--set-interpreter", root / LOADER, "--force-rpath", "--set-rpath",
             ":".join(map(str, folders)), program]
        )  # fmt: skip
    # A library with a RUNPATH of its own ignores its program's RPATH.
    for library in _libraries(work):
        if process.output(["patchelf", "--print-rpath", library]) != "\n":
            context.run(["patchelf", "--remove-rpath", library])


def _libraries(work: Path) -> Iterable[Path]:
    for path in sorted(work.glob("usr/lib/**/*.so*")):
        if not path.is_symlink() and path.is_file() and _is_elf(path):
            yield path


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == ELF


def _check(root: Path, tool: Tool) -> None:
    for program in tool.programs:
        if process.output([root / tool.prefix / program, "--version"]) is None:
            shutil.rmtree(root)
            raise SetupError(f"the unpacked {program} does not run on this host's kernel")
