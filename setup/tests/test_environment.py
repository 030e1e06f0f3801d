"""The environment of a build, and that what is built does not tell where."""

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


def test_flags_of_the_host_stay_and_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CFLAGS", "-O1")
    paths = Paths(tmp_path / "repository", tmp_path / "cache")
    once = environment(paths)["CFLAGS"]
    assert once.startswith("-O1 -ffile-prefix-map=")
    monkeypatch.setenv("CFLAGS", once)
    assert environment(paths)["CFLAGS"] == once
