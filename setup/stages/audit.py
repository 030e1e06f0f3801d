"""What compares the dependencies with published advisories: `make audit`."""

from __future__ import annotations

from .. import crates
from ..context import Context


def run(context: Context) -> None:
    """Build cargo-audit, unless it is there; link it as audit/bin/cargo-audit."""
    crates.provide(context, context.pins.audit, context.paths.audit)
