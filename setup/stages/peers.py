"""Published sched_ext schedulers to compare with, from the Rust crate registry.

Plain set-up leaves them out: only experiments that name one need them, and they
take longer to build than all the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .. import cache
from ..context import Context
from ..environment import environment


def run(context: Context) -> None:
    """Build each pinned peer that is not there yet; link it as peers/bin/NAME."""
    peers, build = context.paths.peers, context.paths.peers / "build"
    for name, version in context.pins.peers.items():
        target = peers / f"{name}-{version}"
        if not (target / "bin" / name).exists():
            context.say(f"building {name} {version}")
            with cache.building(target) as work:
                _install(context, name, version, work, build)
        cache.point(peers / "bin" / name, target / "bin" / name)
    shutil.rmtree(build, ignore_errors=True)


def _install(context: Context, name: str, version: str, root: Path, build: Path) -> None:
    """Compile a crate with the dependencies that its author locked; BUILD is shared by all."""
    context.run(
        ["cargo", "install", name, "--version", f"={version}", "--locked", "--root", root],
        env={
            **environment(context.paths),
            "CARGO_TARGET_DIR": str(build),
            # scx_cargo gives bindgen clang's flags, -mcpu=v4 among them, but bindgen
            # loads the host's libclang: before 18 it knows BPF only up to v3. It
            # reads declarations, which are the same; the last -mcpu counts.
            "BINDGEN_EXTRA_CLANG_ARGS": "-mcpu=v3",
        },
        show=r"^\s*(Compiling \S+ \S+)",
    )
