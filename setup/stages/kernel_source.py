"""Debian's packages of a kernel's source, for those stages that build from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import archive
from ..context import Context


def unpack(context: Context, debs: Sequence[Path], tree: Path, parts: Sequence[str] = ()) -> Path:
    """Put the source, or PARTS of it, into TREE; return the folder of all else that DEBS hold."""
    context.say("unpacking the kernel's source")
    packed = tree / "packed"
    packed.mkdir(parents=True)
    for deb in debs:
        archive.unpack(deb, packed)
    [tarball] = packed.glob("usr/src/linux-source-*.tar.xz")
    top = tarball.name.removesuffix(".tar.xz")
    context.run(
        [
            *("tar", "-xf", tarball, "-C", tree, "--strip-components=1", "--wildcards"),
            *(f"{top}/{part}/*" for part in parts),
        ]
    )
    return packed
