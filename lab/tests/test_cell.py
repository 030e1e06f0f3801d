"""A cell's key changes with all that can change its result, and with nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from pydantic import ValidationError

from heddle_lab import kernels, machine, scheduler, tomlfile, variant, workload
from heddle_lab.cell import Cell, start_offset_ns
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results
from heddle_lab.store import Store
from tests.conftest import bzimage


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "scx_mine"
    path.write_text("#!/bin/sh\n")
    return path


@pytest.fixture
def cell(cache: Path, program: Path) -> Cell:
    assert cache
    load = workload.load("hackbench").model_copy(update={"layers": ["stress"]})
    return Cell(
        machine=machine.load("smp-4"),
        kernel=kernels.find("7.3"),
        contestant=variant.of_scheduler(f"mine={program} --slice 3"),
        workload=load,
        params=load.parameters({}),
        seed=1,
    )


def write(name: str, content: bytes) -> Callable[[Cell, Path, Path], Cell]:
    def change(cell: Cell, cache: Path, program: Path) -> Cell:
        (program if name == "program" else cache / name).write_bytes(content)
        return cell

    return change


def clock(**values: object) -> Callable[[Cell, Path, Path], Cell]:
    def change(cell: Cell, _cache: Path, _program: Path) -> Cell:
        changed = cell.machine.clock.model_copy(update=values)
        return cell.model_copy(update={"machine": cell.machine.model_copy(update={"clock": changed})})

    return change


def update(**values: object) -> Callable[[Cell, Path, Path], Cell]:
    return lambda cell, _cache, _program: cell.model_copy(update=values)


def restart(text: str) -> Callable[[Cell, Path, Path], Cell]:
    return lambda cell, _cache, program: cell.model_copy(
        update={"contestant": variant.of_scheduler(text.replace("PROGRAM", str(program)))}
    )


@pytest.mark.parametrize(
    "change",
    [
        write("qemu/one/bin/qemu-system-x86_64", b"qemu 2"),
        write("kernels/7.3.0-test/vmlinuz", bzimage("7.3.0-other")),
        write("kernels/7.3.0-test/config", b"CONFIG_HZ=1000\n"),
        write("image/one/base.cpio", b"base 2"),
        write("image/one/stress.cpio", b"layer 2"),
        write("program", b"#!/bin/bash\n"),
        clock(quantum_ns=5000),
        clock(speed=50),
        clock(smt=60),
        update(seed=2),
        update(params={"load": 2.0, "loops": 200, "groups": 1}),
        restart("mine=PROGRAM --slice 4"),
        restart("eevdf"),
    ],
)
def test_key_changes(cell: Cell, cache: Path, program: Path, change: Callable[[Cell, Path, Path], Cell]) -> None:
    before = cell.key()
    assert change(cell, cache, program).key() != before


def rename_machine(cell: Cell, _cache: Path, _program: Path) -> Cell:
    renamed = cell.machine.model_copy(update={"name": "other", "summary": "other", "source": "other"})
    return cell.model_copy(update={"machine": renamed})


def drop_metrics(cell: Cell, _cache: Path, _program: Path) -> Cell:
    return cell.model_copy(update={"workload": cell.workload.model_copy(update={"metrics": []})})


def swap_params(cell: Cell, _cache: Path, _program: Path) -> Cell:
    return cell.model_copy(update={"params": dict(reversed(cell.params.items()))})


@pytest.mark.parametrize("change", [rename_machine, drop_metrics, swap_params, write("image/one/spare.cpio", b"new")])
def test_key_stays(cell: Cell, cache: Path, program: Path, change: Callable[[Cell, Path, Path], Cell]) -> None:
    assert change(cell, cache, program).key() == cell.key()


def test_key_does_not_depend_on_where_the_program_lies(cell: Cell, tmp_path: Path, program: Path) -> None:
    other = tmp_path / "elsewhere" / program.name
    other.parent.mkdir()
    other.write_bytes(program.read_bytes())
    moved = cell.model_copy(update={"contestant": variant.of_scheduler(f"mine={other} --slice 3")})
    assert moved.key() == cell.key()


def test_offsets_differ_between_seeds_and_never_between_runs() -> None:
    offsets = [start_offset_ns(seed) for seed in range(1, 101)]
    assert len(set(offsets)) == 100
    assert all(1_000_000 <= offset < 21_000_000 for offset in offsets)
    assert offsets == [start_offset_ns(seed) for seed in range(1, 101)]


def test_the_schedulers_program_goes_to_the_guest(cell: Cell) -> None:
    guest = cell.guest()
    assert guest.files == {"/usr/local/bin/scx_mine": (0o755, b"#!/bin/sh\n")}
    assert guest.job.scheduler is not None
    assert guest.job.scheduler.argv == ["/usr/local/bin/scx_mine", "--slice", "3"]
    assert cell.model_copy(update={"contestant": variant.of_scheduler("eevdf")}).job().scheduler is None


def test_published_schedulers_are_known_by_name(cache: Path) -> None:
    built = cache / "peers" / "scx_peer-1.1.4" / "bin" / "scx_peer"
    built.parent.mkdir(parents=True)
    built.write_text("#!/bin/sh\n")
    with pytest.raises(HeddleError, match="`python3 -m setup peers` and `kernel-peers` build published ones"):
        scheduler.parse("scx_peer")
    (cache / "peers" / "bin").mkdir()
    (cache / "peers" / "bin" / "scx_peer").symlink_to(built)
    for text, argv in (("scx_peer", []), ("tuned=scx_peer -w", ["-w"])):
        found = scheduler.parse(text)
        assert (found.program, found.argv) == (built, ["/usr/local/bin/scx_peer", *argv])


def test_libraries_go_with_a_scheduler(cache: Path) -> None:
    assert cache
    plain = scheduler.parse("mine=/bin/sh")
    assert (list(plain.files()), "libraries" in plain.fingerprint(())) == (["/usr/local/bin/sh"], False)
    started = scheduler.parse("mine=/bin/ls")
    started.check(())
    assert {"/usr/local/bin/ls", "/usr/lib/libselinux.so.1"} <= set(started.files())
    assert "/usr/lib/libselinux.so.1" in started.fingerprint(())["libraries"]


def test_missing_programs_are_named(cache: Path) -> None:
    assert cache
    with pytest.raises(HeddleError, match="scheduler 'mine': no program 'scx_absent' in bin/ or in the guest image"):
        scheduler.parse("mine=scx_absent --flag").check(())
    with pytest.raises(HeddleError, match="/nowhere/scx: no such file"):
        scheduler.parse("mine=/nowhere/scx")
    scheduler.parse("mine=heddle-load spin").check(())


def test_store_returns_what_was_put(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells")
    results = Results(records=[{"event": "done", "virtual_ns": 5}], console="c", wall_s=1.5)
    assert store.get("ab12") is None
    store.put("ab12", results)
    assert store.get("ab12") == results
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ab12.json.zst"]


def test_damaged_result_counts_as_not_measured(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("ab12", Results(records=[], console="", wall_s=1.0))
    file = tmp_path / "ab" / "ab12.json.zst"
    for damaged in (file.read_bytes()[:-3], zstandard.compress(b'{"records": ['), b""):
        file.write_bytes(damaged)
        assert store.get("ab12") is None


def test_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("a file where a folder should be")
    with pytest.raises(HeddleError, match=r"cannot write .*ab12\.json\.zst: "):
        Store(tmp_path / "cells").put("ab12", Results(records=[], console="", wall_s=1.0))


def test_models_are_frozen(cell: Cell) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        cell.seed = 2  # type: ignore[misc]  # frozen: what the test is about
    assert tomlfile.names(Path("/nonexistent")) == []
