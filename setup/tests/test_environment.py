"""The environment of a build, and that what is built does not tell where."""

import os
import subprocess
from pathlib import Path

import pytest

from setup.environment import cargo_home, environment
from setup.paths import Paths


@pytest.mark.parametrize("program", ["scx_heddle", "heddle-agent", "heddle-load"])
def test_programs_name_no_place_they_were_built_in(program: str) -> None:
    """Results in virtual time are those of any other clone only if the programs are."""
    paths = Paths.default()
    built = (paths.target / "release" / program).read_bytes()
    for place in (paths.root, paths.cache, cargo_home()):
        assert f"{place}/".encode() not in built


def test_bpf_programs_do_not_depend_on_the_lengths_of_paths(tmp_path: Path) -> None:
    paths = Paths.default()
    objects = set()
    for folder in (tmp_path / "a", tmp_path / ("a" * 99) / ("b" * 50)):
        folder.mkdir(parents=True)
        (folder / "answer.h").write_text("int answer(void) { return 42; }\n")
        (folder / "main.bpf.c").write_text(
            '#include "answer.h"\nconst char *file(void) { return __FILE__; }\n'
        )
        subprocess.run(
            [
                paths.root / "setup" / "bpf-clang",
                f"-ffile-prefix-map={folder}=/heddle",
                "-I",
                folder,
                *("-g", "-O2", "-target", "bpf"),
                *("-c", folder / "main.bpf.c", "-o", folder / "main.bpf.o"),
            ],
            env=os.environ | environment(paths),
            check=True,
        )
        objects.add((folder / "main.bpf.o").read_bytes())
    [built] = objects
    assert b"/heddle/answer.h" in built


def test_flags_of_the_host_stay_and_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CFLAGS", "-O1")
    paths = Paths(tmp_path / "repository", tmp_path / "cache")
    once = environment(paths)["CFLAGS"]
    assert once.startswith("-O1 -ffile-prefix-map=")
    monkeypatch.setenv("CFLAGS", once)
    assert environment(paths)["CFLAGS"] == once
