"""Content names, and folders that appear whole or not at all."""

from pathlib import Path

import pytest

from setup import cache


def test_a_key_depends_on_every_part_and_its_bounds(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    keys = {cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("ab", "c", "")}
    assert len(keys) == 4
    assert cache.key(file) == cache.key("content") == cache.key(b"content")
    assert cache.key(file, file) != cache.key(file)


def test_an_interrupted_build_leaves_no_target(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(ZeroDivisionError):
        _interrupted(target)
    assert not target.exists()
    with cache.building(target) as work:
        assert list(work.iterdir()) == []
        (work / "whole").touch()
    assert [p.name for p in target.iterdir()] == ["whole"]
    assert list(tmp_path.iterdir()) == [target]


def _interrupted(target: Path) -> None:
    with cache.building(target) as work:
        (work / "half").write_text(str(1 / 0))


def test_a_link_is_replaced_and_is_relative(tmp_path: Path) -> None:
    link = tmp_path / "current"
    for name in ("one", "two", "two"):
        (tmp_path / name).mkdir(exist_ok=True)
        cache.point(link, tmp_path / name)
        assert str(link.readlink()) == name


def test_writing_the_same_text_again_touches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    cache.write(file, "text", mode=0o755)
    inode = file.stat().st_ino
    cache.write(file, "text", mode=0o755)
    assert file.stat().st_ino == inode
    cache.write(file, "other", mode=0o755)
    assert file.read_text() == "other"
