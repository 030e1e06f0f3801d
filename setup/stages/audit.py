"""What compares the dependencies with published advisories: `make audit`."""

from __future__ import annotations

from .. import cache, crates, virtualenv
from ..context import Context


def run(context: Context) -> None:
    """Build cargo-audit and install pip-audit, unless they are there; link them in audit/bin."""
    paths = context.paths
    crates.provide(context, context.pins.audit, paths.audit)
    locked = paths.root / "setup" / "audit.txt"
    environment = virtualenv.provide(context, paths.audit / "venv", locked.read_text())
    cache.point(paths.audit / "bin" / "pip-audit", environment / "bin" / "pip-audit")
