"""The kernel's own sched_ext schedulers to compare with, from Debian's source of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .. import cache
from ..context import Context, items
from ..debian import Package
from ..pins import KernelPeers
from ..report import SetupError
from . import kernel_source

# All that tools/sched_ext and the bpftool that it builds are made from.
PARTS = ("tools", "scripts", "kernel/bpf")
TYPES = "usr/include/x86_64-linux-gnu/linux/bpf/vmlinux.h"


def run(context: Context) -> None:
    """Build the pinned schedulers unless that has been done; link each as peers/bin/NAME."""
    pinned = context.pins.kernel_peers
    packages = context.apt.obtain("kernel-peers", pinned, lambda: items(_packages(context, pinned)))
    digest = cache.key(*(item.file.sha256 for item, _ in packages), repr(pinned), Path(__file__))
    target = context.paths.peers / f"kernel-{digest}"
    if not target.exists():
        with cache.building(target) as work:
            _build(context, [deb for _, deb in packages], pinned, work / "source")
            (work / "bin").mkdir()
            for name in pinned.programs:
                shutil.copy(work / "source/build/bin" / name, work / "bin" / name)
            shutil.rmtree(work / "source")
    for name in pinned.programs:
        cache.point(context.paths.peers / "bin" / name, target / "bin" / name)


def _packages(context: Context, pinned: KernelPeers) -> list[Package]:
    """The newest package of the source, and that of its types."""
    index = context.apt.index(pinned.suites)
    for source in index.versions(pinned.source):
        for types in index.versions(pinned.types):
            if types.version == source.version:
                return [source, types]
    raise SetupError(f"no {pinned.source} with a {pinned.types} of its version in the suites")


def _build(context: Context, debs: list[Path], pinned: KernelPeers, source: Path) -> None:
    """Unpack into SOURCE what is needed and build the programs into its `build/bin`."""
    packed = kernel_source.unpack(context, debs, source, PARTS)
    tools = context.paths.toolchain / "bin"
    context.run(
        [
            "make",
            f"-j{os.cpu_count()}",
            *pinned.programs,
            f"O={source}",
            # Given the types, it needs no kernel to take them from, but looks for one.
            *(f"{name}={packed / TYPES}" for name in ("VMLINUX_H", "VMLINUX_BTF")),
            f"CLANG={tools / 'clang'}",
            f"LLVM_STRIP={tools / 'llvm-strip'}",
        ],
        cwd=source / "tools/sched_ext",
        show=r"^\s+((?:CC|CLANG|LINK)\s+\S+)",
    )
