"""Programs of the Rust crate registry, built as their authors locked them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from . import cache
from .context import Context
from .environment import environment


def provide(context: Context, wanted: Mapping[str, str], parent: Path) -> None:
    """Build each WANTED program (name -> version) that PARENT lacks; link it as PARENT/bin/NAME."""
    build = parent / "build"
    for name, version in wanted.items():
        target = parent / f"{name}-{version}"
        if not (target / "bin" / name).exists():
            context.say(f"building {name} {version}")
            with cache.building(target) as work:
                _install(context, name, version, work, build)
        cache.point(parent / "bin" / name, target / "bin" / name)
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
