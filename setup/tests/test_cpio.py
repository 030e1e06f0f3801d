"""Archives are read back with cpio(1), the reference."""

import io
import subprocess
from pathlib import Path

from setup import cpio
from setup.cpio import Entry
from setup.tree import Tree

FILES = {
    "usr/bin/tool": cpio.file(b"#!/bin/sh\n", 0o4755),
    "usr": cpio.directory(),
    "usr/bin": cpio.directory(0o750),
    "bin": cpio.symlink("usr/bin"),
    "empty": cpio.file(b""),
    "odd": cpio.file(b"12345", 0o600),
}


def archive(entries: dict[str, Entry]) -> bytes:
    out = io.BytesIO()
    cpio.write(out, entries)
    return out.getvalue()


def test_cpio_reads_what_is_written(tmp_path: Path) -> None:
    words = ["cpio", "--extract", "--make-directories", "--quiet", "--no-preserve-owner"]
    subprocess.run(words, input=archive(FILES), cwd=tmp_path, check=True)
    found = sorted(
        str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if "bin/tool" not in str(p)
    )
    assert found == ["bin", "empty", "odd", "usr", "usr/bin"]
    assert (tmp_path / "usr/bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert (tmp_path / "usr/bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "usr/bin").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "odd").read_bytes() == b"12345"
    assert str((tmp_path / "bin").readlink()) == "usr/bin"


def test_the_order_of_insertion_does_not_show() -> None:
    assert archive(FILES) == archive(dict(reversed(FILES.items())))


def test_everything_belongs_to_root_and_has_no_time() -> None:
    words = ["cpio", "--list", "--verbose", "--numeric-uid-gid", "--quiet"]
    done = subprocess.run(
        words,
        input=archive(FILES),
        capture_output=True,
        check=True,
        env={"TZ": "UTC", "LC_ALL": "C"},
    )
    for line in done.stdout.decode().splitlines():
        assert line.split()[2:4] == ["0", "0"]
        assert "1970" in line


def test_several_archives_follow_one_another() -> None:
    # The kernel looks for the next archive at a multiple of four bytes.
    assert len(archive(FILES)) % 4 == 0


def test_a_tree_follows_merged_usr_and_drops_folders_whole() -> None:
    tree = Tree()
    tree.add("bin/tool", cpio.file(b""))
    tree.add("usr/share/doc/tool/README", cpio.file(b""))
    tree.add("usr/share/document", cpio.file(b""))
    tree.drop(["/usr/share/doc", "/usr/lib/*"])
    assert set(tree.entries) == {
        "usr",
        "usr/bin",
        "usr/bin/tool",
        "usr/share",
        "usr/share/document",
    }


def test_libraries_in_subfolders_are_linked_where_the_linker_looks() -> None:
    tree = Tree()
    base = "usr/lib/x86_64-linux-gnu"
    tree.add(f"{base}/blas/libblas.so.3", cpio.file(b"blas"))
    tree.add(f"{base}/own/libz.so.1", cpio.file(b"other"))
    tree.add(f"{base}/libz.so.1", cpio.file(b"z"))
    tree.add(f"{base}/plugins/plugin.so", cpio.file(b""))
    tree.link_libraries()
    assert tree.entries[f"{base}/libblas.so.3"] == cpio.symlink("blas/libblas.so.3")
    assert tree.entries[f"{base}/libz.so.1"].data == b"z"
    assert f"{base}/plugin.so" not in tree.entries
