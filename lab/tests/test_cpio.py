"""Archives read back as they were written, by this module and by the reference implementation."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import cpio

names = st.lists(st.text("abcdefgh.-_", min_size=1, max_size=9).filter(lambda n: n.strip(".")), min_size=1, max_size=4)
trees = st.dictionaries(
    names.map(lambda parts: "/" + "/".join(["d", *parts, "file"])), st.binary(max_size=99), max_size=9
)


@given(trees)
def test_reads_back_what_was_packed(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, bytes]) -> None:
    path = tmp_path_factory.mktemp("cpio") / "a.cpio"
    path.write_bytes(cpio.pack({name: (0o640, data) for name, data in tree.items()}))
    found = [entry for entry in cpio.entries(path) if entry.mode == 0o100640]
    assert [entry.name for entry in found] == sorted(tree)


def test_concatenated_archives_are_read_through(tmp_path: Path) -> None:
    path = tmp_path / "a.cpio"
    path.write_bytes(cpio.pack({"/a/b": (0o644, b"12345")}) + bytes(512) + cpio.pack({"/c": (0o755, b"")}))
    assert [entry.name for entry in cpio.entries(path)] == ["/a", "/a/b", "/c"]


def test_the_reference_implementation_unpacks_it(tmp_path: Path) -> None:
    program = shutil.which("cpio")
    assert program, "the host package cpio is missing: run `make setup`"
    archive = cpio.pack({"/usr/local/bin/tool": (0o755, b"#!/bin/sh\n"), "/etc/odd": (0o600, b"123")})
    subprocess.run([program, "-idm", "--quiet"], input=archive, cwd=tmp_path, check=True)
    assert (tmp_path / "etc/odd").read_bytes() == b"123"
    assert (tmp_path / "usr/local/bin/tool").stat().st_mode & 0o777 == 0o755


def test_same_files_same_bytes() -> None:
    one = {"/b": (0o644, b"1"), "/a/c": (0o644, b"2")}
    assert cpio.pack(one) == cpio.pack(dict(reversed(one.items())))


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.cpio"
    path.write_bytes(b"PK" + bytes(200))
    with pytest.raises(ValueError, match="not a newc archive"):
        list(cpio.entries(path))
