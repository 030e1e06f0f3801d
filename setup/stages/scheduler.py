"""The workspace's programs: scx_heddle, and the guest's agent and load generator."""

from __future__ import annotations

from ..context import Context
from ..environment import environment


def run(context: Context) -> None:
    """Build all crates for release; cargo itself knows what has changed."""
    context.run(
        ["cargo", "build", "--release", "--locked", "--workspace"],
        cwd=context.paths.root,
        env=environment(context.paths),
        show=r"^\s*(Compiling \S+ \S+)",
    )
