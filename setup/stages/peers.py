"""Published sched_ext schedulers to compare with, from the Rust crate registry.

Plain set-up leaves them out: only experiments that name one need them, and they
take longer to build than all the rest.
"""

from __future__ import annotations

from .. import crates
from ..context import Context


def run(context: Context) -> None:
    """Build each pinned peer that is not there yet; link it as peers/bin/NAME."""
    crates.provide(context, context.pins.peers, context.paths.peers)
