"""A new series of patches writes what it changes and nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from setup import pins
from setup.apt import Apt
from setup.context import Context
from setup.paths import Paths
from setup.report import Progress, SetupError
from setup.stages import qemu

LONG_AGO = 1_000_000_000


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    argv = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source of three files, committed and tagged as the stage does it."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("a.c", "b.c", "c.h"):
        (folder / name).write_text(f"{name}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "source")
    git(folder, "tag", "base")
    return folder


@pytest.fixture
def context(tmp_path: Path) -> Context:
    paths = Paths(root=tmp_path / "repository", cache=tmp_path / "cache")
    (paths.root / qemu.PATCHES).mkdir(parents=True)
    found = pins.load(Path(qemu.__file__).parents[1] / "pins.toml")
    progress = Progress()
    apt = Apt(paths, found.debian, progress, refresh=False)
    return Context("qemu", paths, found, apt, progress)


def series(context: Context, tree: Path, *patches: dict[str, str]) -> None:
    """Replace the patches: each gives some files new content."""
    folder = context.paths.root / qemu.PATCHES
    for old in folder.glob("*.patch"):
        old.unlink()
    author = tree.with_name("author")
    shutil.rmtree(author, ignore_errors=True)
    git(tree, "clone", "-q", str(tree), str(author))
    for files in patches:
        for name, text in files.items():
            (author / name).write_text(text)
        git(author, "add", "-A")
        git(author, "commit", "-q", "-m", "change " + " ".join(files))
    git(author, "format-patch", "-q", "-o", str(folder), "base")


def written(context: Context, tree: Path) -> dict[str, str]:
    """Check the series out and return the files that were written, with their content."""
    for path in tree.glob("*.[ch]"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    qemu.check_out(context, tree)
    return {p.name: p.read_text() for p in tree.glob("*.[ch]") if p.stat().st_mtime != LONG_AGO}


def test_only_what_differs_is_written(context: Context, tree: Path) -> None:
    series(context, tree, {"a.c": "one\n"}, {"b.c": "one\n", "new.h": "one\n"})
    assert written(context, tree) == {"a.c": "one\n", "b.c": "one\n", "new.h": "one\n"}
    assert written(context, tree) == {}
    series(context, tree, {"a.c": "one\n"}, {"b.c": "two\n", "new.h": "one\n"})
    assert written(context, tree) == {"b.c": "two\n"}
    series(context, tree, {"a.c": "one\n"})
    assert written(context, tree) == {"b.c": "b.c\n"}
    assert not (tree / "new.h").exists()


def test_an_interrupted_check_out_is_made_good(context: Context, tree: Path) -> None:
    series(context, tree, {"a.c": "one\n", "new.h": "one\n"})
    (tree / "a.c").write_text("hal")
    (tree / "b.c").unlink()
    (tree / "stray.h").write_text("of a series that was not completed\n")
    (tree / ".git" / "index.lock").touch()
    assert written(context, tree) == {"a.c": "one\n", "b.c": "b.c\n", "new.h": "one\n"}
    assert not (tree / "stray.h").exists()


def test_a_patch_that_does_not_apply_is_named(context: Context, tree: Path) -> None:
    series(context, tree, {"a.c": "one\n"})
    [patch] = (context.paths.root / qemu.PATCHES).glob("*.patch")
    patch.write_text(patch.read_text().replace("-a.c\n", "-other\n"))
    with pytest.raises(SetupError, match=r"0001-change-a.c.patch does not apply; see .*qemu.log"):
        qemu.check_out(context, tree)
    assert (tree / "a.c").read_text() == "a.c\n"
