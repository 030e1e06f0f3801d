"""The store of snapshots: made once, whole or absent, bounded, and safe against a process that is killed."""

import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from heddle_lab.snapshots import Snapshots

BLOCK = 1 << 20


def make(target: Path) -> None:
    (target / "state").write_bytes(bytes(BLOCK))


def fail(_: Path) -> str:
    return "instead"


def unwanted(_: Path) -> None:
    pytest.fail("it is there already")


def test_it_is_made_once(tmp_path: Path) -> None:
    store = Snapshots(tmp_path)
    with store.held("a", make) as found:
        assert isinstance(found, Path)
        assert (found / "state").stat().st_size == BLOCK
    with store.held("a", unwanted) as again:
        assert again == found


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    store = Snapshots(tmp_path)
    with store.held("a", fail) as found:
        assert found == "instead"
    with pytest.raises(ZeroDivisionError), store.held("a", lambda _: 1 // 0):
        pass
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_those_used_last_go_first_and_none_in_use(tmp_path: Path) -> None:
    store = Snapshots(tmp_path, limit_bytes=2 * BLOCK + BLOCK // 2)
    for age, key in enumerate("cba"):
        with store.held(key, make) as found:
            assert isinstance(found, Path)
            os.utime(found, (age, age))
    with store.held("b", unwanted), store.held("d", make):
        kept = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {"b", "d"}
    assert {path.stem for path in tmp_path.glob("*.lock")} == kept


def hold(folder: Path, making: Event) -> None:
    def never_ends(target: Path) -> None:
        make(target)
        making.set()
        signal.pause()

    with Snapshots(folder).held("a", never_ends):
        pass


def test_a_maker_that_is_killed_blocks_no_other(tmp_path: Path) -> None:
    making = multiprocessing.Event()
    process = multiprocessing.Process(target=hold, args=(tmp_path, making))
    process.start()
    assert making.wait(30)
    process.kill()
    process.join()
    with Snapshots(tmp_path).held("a", make) as found:
        assert isinstance(found, Path)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.lock"}


def use(folder: Path, made: Path) -> None:
    def count(target: Path) -> None:
        make(target)
        with made.open("a") as file:
            file.write("x")

    with Snapshots(folder).held("a", count) as found:
        assert isinstance(found, Path)
        assert (found / "state").stat().st_size == BLOCK


def test_of_many_that_ask_at_once_one_makes_it(tmp_path: Path) -> None:
    made = tmp_path / "made"
    users = [multiprocessing.Process(target=use, args=(tmp_path / "store", made)) for _ in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert [user.exitcode for user in users] == [0] * 8
    assert made.read_text() == "x"


def churn(folder: Path, first: int) -> None:
    for number in range(50):
        with Snapshots(folder, limit_bytes=2 * BLOCK).held(f"{(first + number) % 7}", make) as found:
            assert isinstance(found, Path)
            assert (found / "state").stat().st_size == BLOCK


def test_many_may_make_and_evict_at_once(tmp_path: Path) -> None:
    users = [multiprocessing.Process(target=churn, args=(tmp_path, first)) for first in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert [user.exitcode for user in users] == [0] * 4
