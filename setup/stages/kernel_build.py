"""A kernel that Debian does not build as guests need it, from Debian's source.

The configuration is Debian's for the same source, less all modules and what a
guest of the laboratory has no use for: a quarter of the work is left. Debian's
compiler builds it, so that its code and its types (BTF) are what users run.
"""

from __future__ import annotations

import lzma
import os
import re
import shlex
import shutil
from pathlib import Path

from .. import cache
from ..apt import Item
from ..context import Context, items
from ..debian import Package
from ..pins import KernelBuild
from ..report import SetupError
from . import kernel_source, toolchain

GCC = "x86_64-linux-gnu-gcc-14"

# Called by name; all else of the tools is found by its path.
BY_NAME = ("bc", "bison", "flex", "m4", "pahole")

# The same bits whenever it is built, and after an interruption; in another
# folder, the build ID differs (it covers the debug information's paths).
REPRODUCIBLE = {
    "KBUILD_BUILD_VERSION": "1",
    "KBUILD_BUILD_TIMESTAMP": "@0",
    "KBUILD_BUILD_USER": "heddle",
    "KBUILD_BUILD_HOST": "heddle",
}


# In an unpacked source.
MAKE = "heddle-make"


def provide(context: Context) -> str:
    """Build the pinned kernel unless that has been done; return its release."""
    pinned = context.pins.kernel_build
    sources = _debs(context, pinned)
    tools = toolchain.unpack(context, "kernel-build", pinned.tools)
    digest = cache.key(
        *(item.file.sha256 for item, _ in sources), repr(pinned), tools.name, Path(__file__)
    )
    target = context.paths.kernels / f"build-{digest}"
    if not target.exists():
        tree = context.paths.kernels / f"source-{digest}"
        make = _Make(context, tree, tools)
        if not tree.exists():
            with cache.building(tree) as work:
                _unpack(context, [deb for _, deb in sources], work)
        _configure(make, pinned)
        context.say("compiling the kernel, which may take half an hour")
        make.run("bzImage", show=r"^\s+((?:CC|LD|BTF)\s+\S+)")
        with cache.building(target) as work:
            shutil.copy(tree / "arch/x86/boot/bzImage", work / "vmlinuz")
            shutil.copy(tree / ".config", work / "config")
            shutil.copy(tree / "include/config/kernel.release", work / "release")
        shutil.rmtree(tree)
    release = (target / "release").read_text().strip()
    cache.point(context.paths.kernels / release, target)
    return release


def unpack_source(context: Context, tree: Path) -> None:
    """Unpack the pinned source into TREE, with MAKE, which runs make with the unpacked tools."""
    pinned = context.pins.kernel_build
    if tree.exists() and any(tree.iterdir()):
        raise SetupError(f"{tree} is not empty: name a new folder")
    sources = _debs(context, pinned)
    tree.mkdir(parents=True, exist_ok=True)
    _unpack(context, [deb for _, deb in sources], tree)
    make = _Make(context, tree, toolchain.unpack(context, "kernel-build", pinned.tools))
    script = tree / MAKE
    script.write_text(f'#!/bin/sh\nexec {make.words()} "$@"\n')
    script.chmod(0o755)


def _debs(context: Context, pinned: KernelBuild) -> list[tuple[Item, Path]]:
    """The source and Debian's configurations of it, fetched."""
    return context.apt.obtain(
        f"kernel-source-{pinned.series}", pinned, lambda: items(_sources(context, pinned))
    )


def configuration(base: str, pinned: KernelBuild) -> str:
    """BASE, a kernel's configuration, without modules and with what is PINNED.

    Of several lines on one option, the last one counts.
    """
    lines = re.sub(r"^(CONFIG_\w+)=m$", r"# \1 is not set", base, flags=re.MULTILINE).splitlines()
    lines += [f"# CONFIG_{name} is not set" for name in pinned.off]
    lines += [f"CONFIG_{name}={value}" for name, value in pinned.on.items()]
    return "\n".join(lines) + "\n"


def _sources(context: Context, pinned: KernelBuild) -> list[Package]:
    """The newest packages of the source and of Debian's configurations of it."""
    index = context.apt.index(pinned.suites)
    found = [index.versions(name) for name in (pinned.source, pinned.config_package)]
    if not all(found):
        raise SetupError(f"no {pinned.source} in the pinned suites")
    return [versions[0] for versions in found]


def _unpack(context: Context, debs: list[Path], tree: Path) -> None:
    """Put the source and, as `config.*.xz`, the configurations into TREE."""
    packed = kernel_source.unpack(context, debs, tree)
    for config in packed.glob("usr/src/linux-config-*/config.*.xz"):
        shutil.move(config, tree)
    shutil.rmtree(packed)


def _configure(make: _Make, pinned: KernelBuild) -> None:
    base = make.tree / f"config.{pinned.config}.xz"
    if not base.exists():
        raise SetupError(f"{pinned.config_package} holds no {base.name}")
    config = make.tree / ".config"
    config.write_text(configuration(lzma.decompress(base.read_bytes()).decode(), pinned))
    make.run("olddefconfig")
    made = config.read_text().splitlines()
    for name, value in pinned.on.items():
        if f"CONFIG_{name}={value}" not in made:
            raise SetupError(f"pins.toml: this source does not take CONFIG_{name}={value}")


class _Make:
    """The kernel's make with the unpacked tools; programs of the build itself are the host's."""

    def __init__(self, context: Context, tree: Path, tools: Path) -> None:
        self._context = context
        self.tree = tree
        programs = tools / context.pins.kernel_build.tools.prefix
        links = context.paths.toolchain / "kernel-build"
        for name in BY_NAME:
            cache.point(links / "bin" / name, programs / name)
        # gcc looks for its assembler by that name, and would find the host's.
        cache.point(links / "gcc" / "as", programs / "x86_64-linux-gnu-as")
        self._words = [
            f"-j{os.cpu_count()}",
            f"CROSS_COMPILE={programs}/x86_64-linux-gnu-",
            f"CC={programs / GCC} -B{links / 'gcc'}",
            "RUSTC=none",
        ]
        self._env = REPRODUCIBLE | {
            "PATH": os.pathsep.join([str(links / "bin"), os.environ.get("PATH", "/usr/bin:/bin")]),
            "M4": str(programs / "m4"),
            "BISON_PKGDATADIR": str(tools / "usr/share/bison"),
        }

    def run(self, target: str, show: str | None = None) -> None:
        """Make TARGET; lines that match SHOW are progress."""
        self._context.run(["make", target, *self._words], cwd=self.tree, env=self._env, show=show)

    def words(self) -> str:
        """The command as a shell takes it, without the number of jobs."""
        own = {name: value for name, value in self._env.items() if name not in REPRODUCIBLE}
        settings = [f"{name}={value}" for name, value in own.items()]
        return shlex.join(["env", *settings, "make", *self._words[1:]])
