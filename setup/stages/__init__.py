"""The stages of set-up, one a file, each a function `run(context)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..context import Context
from . import (
    audit,
    calibrate,
    deb,
    host,
    image,
    kernel_peers,
    kernels,
    peers,
    python,
    qemu,
    scheduler,
    toolchain,
)


@dataclass(frozen=True)
class Stage:
    """A step of set-up and the steps that must be done before it.

    One `on_demand` runs only where it is named.
    """

    name: str
    run: Callable[[Context], None]
    needs: tuple[str, ...]
    on_demand: bool = False


# In the order in which they are started where there is a choice: QEMU first,
# because its build takes longest and the downloads fit beside it.
STAGES = (
    Stage("host", host.run, ()),
    Stage("qemu", qemu.run, ("host",)),
    Stage("toolchain", toolchain.run, ("host",)),
    Stage("kernels", kernels.run, ("host",)),
    Stage("python", python.run, ("host",)),
    Stage("calibrate", calibrate.run, ("host",)),
    Stage("scheduler", scheduler.run, ("toolchain",)),
    Stage("image", image.run, ("toolchain", "scheduler")),
    Stage("deb", deb.run, ("host", "toolchain", "scheduler"), on_demand=True),
    Stage("peers", peers.run, ("toolchain",), on_demand=True),
    Stage("audit", audit.run, ("toolchain",), on_demand=True),
    Stage("kernel-peers", kernel_peers.run, ("toolchain",), on_demand=True),
)
