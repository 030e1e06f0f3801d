"""A source tree as part of a layer."""

import io
import stat
import tarfile
from pathlib import Path

from setup.tree import Tree


def test_a_source_goes_below_its_folder_without_its_own(tmp_path: Path) -> None:
    tarball = tmp_path / "thing_1.2.orig.tar.xz"
    with tarfile.open(tarball, "w:xz") as tar:
        for name, mode in (("thing-1.2/configure", 0o755), ("thing-1.2/src/a.c", 0o644)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = 3, mode
            tar.addfile(member, io.BytesIO(b"abc"))
    tree = Tree()
    tree.add_source(tarball, "usr/src/thing")
    assert set(tree.entries) == {
        "usr", "usr/src", "usr/src/thing", "usr/src/thing/configure",
        "usr/src/thing/src", "usr/src/thing/src/a.c",
    }  # fmt: skip
    assert tree.entries["usr/src/thing/src/a.c"].data == b"abc"
    assert stat.S_IMODE(tree.entries["usr/src/thing/configure"].mode) == 0o755
