"""Many cells at once: nothing is done twice and nothing is lost, whatever ends the run or a worker."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle_lab import memory, scratch
from heddle_lab.errors import HeddleError
from tests.emulator import Emulator

NOBODY = (1 << 22) + 1
"""no process: PID_MAX_LIMIT and one"""

PATIENCE_S = 60.0

CELLS = 12
"""of half a second each: enough that a busy host does not end a run before it is interrupted"""


@pytest.fixture
def emulator(cache: Path) -> Emulator:
    return Emulator(cache, seconds=0.5)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def seeds_of(folder: Path) -> list[int]:
    return sorted(cell["seed"] for cell in json.loads((folder / "results.json").read_text())["cells"])


def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(emulator: Emulator) -> None:
    run = emulator.start(CELLS, "--jobs", "1")
    wait_for(lambda: emulator.cells() >= 2)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=PATIENCE_S)
    done = emulator.cells()
    assert run.returncode == 130
    assert f"heddle: interrupted; {done} of {CELLS} cells are kept, run again to go on" in err
    assert "Traceback" not in err
    assert seeds_of(emulator.cache / "out") == list(range(1, done + 1))
    assert emulator.running() == []
    begun = len(emulator.boots())
    again = emulator.run(CELLS, "--jobs", "1")
    assert again.returncode == 0
    assert emulator.boots()[begun:] == list(range(done + 1, CELLS + 1))
    assert seeds_of(emulator.cache / "out") == list(range(1, CELLS + 1))


def test_kill_9_leaves_no_guest_and_the_next_run_goes_on(emulator: Emulator) -> None:
    run = emulator.start(CELLS, "--jobs", "1")
    wait_for(lambda: emulator.cells() >= 2)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=PATIENCE_S)
    wait_for(lambda: emulator.running() == [])
    done = emulator.cells()
    assert list((emulator.cache / "tmp").glob("heddle-run-*"))
    assert emulator.run(CELLS, "--jobs", "1").returncode == 0
    boots = emulator.boots()
    # Begun twice is at most the cell that the dead run had in hand.
    assert len(boots) <= CELLS + 1
    assert boots[done - CELLS :] == list(range(done + 1, CELLS + 1))
    assert not list((emulator.cache / "tmp").glob("heddle-run-*"))


def test_what_is_measured_is_not_measured_again(emulator: Emulator) -> None:
    first, second = emulator.run(3), emulator.run(3)
    assert (first.returncode, second.returncode) == (0, 0)
    assert sorted(emulator.boots()) == [1, 2, 3]
    assert first.stdout == second.stdout
    assert second.stderr == "all 3 cells are stored: nothing to measure\n"
    assert emulator.run(1).stderr == "the cell is stored: nothing to measure\n"


def test_one_cell_is_not_several(emulator: Emulator) -> None:
    assert emulator.run(1).stderr.startswith("1 cell to measure, 0 stored; 1 at a time: ")


def test_progress_says_how_far_and_how_long(emulator: Emulator) -> None:
    plan, *lines = emulator.run(3, "--jobs", "1").stderr.splitlines()
    assert plan == "3 cells to measure, 0 stored; 1 at a time: no earlier cell tells how long"
    assert [line.split()[0] for line in lines] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "about" in lines[0]
    assert "left" not in lines[2]


class Cluster:
    """A Dask scheduler and workers, each a process."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._file = emulator.cache / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard")
        wait_for(self._file.exists)
        self.address = str(json.loads(self._file.read_text())["address"])

    def worker(self, cache: Path | None = None) -> "subprocess.Popen[bytes]":
        return self._start("worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", cache=cache)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _start(self, what: str, *arguments: str, cache: Path | None = None) -> "subprocess.Popen[bytes]":
        environment = self._emulator.environment() | ({"HEDDLE_CACHE": str(cache)} if cache else {})
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", what, "--scheduler-file", str(self._file), *arguments],
            env=environment,
            cwd=self._emulator.cache,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process


@pytest.fixture
def cluster(emulator: Emulator) -> Iterator[Cluster]:
    made = Cluster(emulator)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(made.stop)
        yield made


def test_a_worker_killed_in_the_middle_loses_nothing(emulator: Emulator, cluster: Cluster) -> None:
    workers = [cluster.worker(), cluster.worker()]
    run = emulator.start(8, "--dask", cluster.address)
    wait_for(lambda: emulator.cells() >= 2 and len(emulator.running()) == 2)
    workers[0].kill()
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, err
    assert seeds_of(emulator.cache / "out") == list(range(1, 9))
    assert emulator.cells() == 8
    assert "results.json" in out
    # Done twice is at most the one that the dead worker had in hand.
    assert len(emulator.boots()) <= 9
    assert sorted(set(emulator.boots())) == list(range(1, 9))


def test_a_worker_with_other_inputs_is_refused(emulator: Emulator, cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["cp", "-a", f"{emulator.cache}/.", str(other)], check=True)
    (other / "image/one/base.cpio").write_bytes((other / "image/one/stress.cpio").read_bytes())
    cluster.worker(other)
    refused = emulator.run(1, "--dask", cluster.address)
    assert refused.returncode == 1
    assert "has another kernel, QEMU, image or scheduler: run `make setup` there" in refused.stderr
    assert emulator.boots() == []


def test_inputs_that_change_meanwhile_spoil_no_name(emulator: Emulator) -> None:
    layer, program = emulator.cache / "image/one/base.cpio", emulator.cache / "qemu/one/bin/qemu-system-x86_64"
    whole = layer.read_bytes()
    program.write_text(program.read_text().replace("[ -e", f"echo more >> {layer}\n[ -e"))
    done = emulator.run(3, "--jobs", "1")
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "(and 2 more cells): kernel, QEMU, image or" in line]
    # What was booted before the change is kept under its right name, the rest was not booted.
    assert emulator.boots() == [1]
    layer.write_bytes(whole)
    program.write_text(program.read_text().replace("echo more", ": echo more"))
    assert emulator.run(3).returncode == 0


def test_a_cluster_that_is_not_there_is_one_line(emulator: Emulator) -> None:
    refused = emulator.run(1, "--dask", "tcp://127.0.0.1:1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("heddle: no Dask scheduler at tcp://127.0.0.1:1: ")
    assert refused.stderr.count("\n") == 1


def test_guests_that_do_not_fit_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_mib", lambda: 1000)
    at_once: list[int] = []
    inside = 0
    guard = threading.Lock()

    def guest() -> None:
        nonlocal inside
        with memory.reserved(400, tmp_path):
            with guard:
                inside += 1
                at_once.append(inside)
            time.sleep(0.2)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=guest) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(at_once) == 5
    assert max(at_once) == 2
    assert memory.free_mib(tmp_path) == 1000


def test_a_guest_that_never_fits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_mib", lambda: 1000)
    complaint = "not enough memory for one guest: 1001 MiB needed, 1000 MiB free"
    with pytest.raises(HeddleError, match=complaint), memory.reserved(1001, tmp_path):
        pass


def test_the_memory_of_a_dead_process_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_mib", lambda: 1000)
    code = "import sys; from pathlib import Path; from heddle_lab import memory\n"
    code += "with memory.reserved(300, Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(memory.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert memory.free_mib(tmp_path) == 700
    holder.kill()
    holder.communicate()
    assert memory.free_mib(tmp_path) == 1000


@pytest.mark.parametrize(("text", "free"), [(f"{NOBODY} 300", 700), ("", 1000)])
def test_an_entry_that_its_owner_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, free: int
) -> None:
    """It may count a moment longer; it fails nobody."""
    monkeypatch.setattr(memory, "available_mib", lambda: 1000)
    entry = tmp_path / f"{NOBODY}-1.mib"
    entry.write_text(text)

    def flock(_file: object, _operation: int) -> None:
        entry.unlink()
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", flock)
    assert memory.free_mib(tmp_path) == free
    assert not entry.exists()


def test_an_entry_that_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_mib", lambda: 1000)
    with (tmp_path / f"{NOBODY}-1.mib").open("w") as entry:
        fcntl.flock(entry, fcntl.LOCK_EX)
        assert memory.free_mib(tmp_path) == 1000


def test_scratch_of_a_living_run_is_left_alone() -> None:
    with scratch.folder() as first, scratch.folder() as second:
        assert first.is_dir()
        assert second.is_dir()
    assert not first.exists()
    assert not second.exists()
