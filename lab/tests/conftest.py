"""Fixtures of all tests: a cache made of small files, and guests booted on each kernel."""

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings

from heddle_lab import cpio, kernels, scheduler, vm
from heddle_lab.job import Job, SchedulerCommand, Step
from heddle_lab.machine import load as load_machine
from heddle_lab.results import Results

# What a run of the tests says hangs on the tree alone, not on luck or load.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

_ASKED = os.environ.get("HEDDLE_KERNELS", "").split()

KERNELS = tuple(_ASKED or ("6.18", "7.3"))
"""what tests boot; others, such as 6.12, are for lab/tests/vm alone: no samples of theirs are recorded"""

NEWEST = tuple(_ASKED or KERNELS[-1:])
"""what a test boots that is not marked `every_kernel`: all of HEDDLE_KERNELS if that is set, to save time if not"""

_BOOTED = ("boot", "boot_once", "kernel")
"""arguments of tests and fixtures that say which kernel it is"""

Record = Callable[[str, object], None]
"""pytest's record_property"""

Files = Mapping[str, tuple[int, bytes]]
NO_FILES: Files = {}


WATCHDOG_MS = 10_000
"""a third of the scheduler's own; a task of a test that waits for so long is a fault"""


def _watched(command: SchedulerCommand | None, watchdog_ms: int) -> SchedulerCommand | None:
    """Return a scheduler's command with a watchdog that waits for so long."""
    if command is None:
        return None
    return command.model_copy(update={"argv": ["env", f"SCX_TIMEOUT_MS={watchdog_ms}", *command.argv]})


class Boot(Protocol):
    """Boots a guest on the kernel under test and returns what it reported, errors included.

    Args:
        steps: what the agent does, in order.
        machine: name of a machine.
        sched: as `--sched` takes it.
        seed: of the cell.
        layers: image layers beside the base.
        files: more files for the guest: path -> (mode, content).
        boot_parameters: of the kernel, beside those that every guest has.
        compute: whether one instruction stands for a load's loop.
        watchdog_ms: how long a task may wait before sched_ext throws the scheduler out.
        timeout_ns: of the whole job, virtual time.
        wall_timeout_s: the guest is killed after it.
    """

    kernel: str

    def __call__(
        self,
        steps: Sequence[Step],
        *,
        machine: str = "smp-4",
        sched: str = "eevdf",
        seed: int = 1,
        layers: Sequence[str] = (),
        files: Files = NO_FILES,
        boot_parameters: Sequence[str] = (),
        compute: bool = True,
        watchdog_ms: int = WATCHDOG_MS,
        timeout_ns: int = 180_000_000_000,
        wall_timeout_s: float = vm.WALL_TIMEOUT_S,
    ) -> Results: ...


class _Boot:
    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def __call__(
        self,
        steps: Sequence[Step],
        *,
        machine: str = "smp-4",
        sched: str = "eevdf",
        seed: int = 1,
        layers: Sequence[str] = (),
        files: Files = NO_FILES,
        boot_parameters: Sequence[str] = (),
        compute: bool = True,
        watchdog_ms: int = WATCHDOG_MS,
        timeout_ns: int = 180_000_000_000,
        wall_timeout_s: float = vm.WALL_TIMEOUT_S,
    ) -> Results:
        started = scheduler.parse(sched)
        started.check(tuple(layers))
        job = Job(
            seed=seed, timeout_ns=timeout_ns, scheduler=_watched(started.command(), watchdog_ms), steps=list(steps)
        )
        guest = vm.Guest(
            machine=load_machine(machine),
            kernel=kernels.find(self.kernel),
            job=job,
            layers=tuple(layers),
            files={**started.files(tuple(layers)), **files},
            boot_parameters=tuple(boot_parameters),
            compute=compute,
        )
        return vm.run(guest, wall_timeout_s)


def _names(arguments: str | Sequence[str]) -> Sequence[str]:
    """Return the arguments that a `parametrize` gives, of which one may stand alone."""
    return arguments.split(",") if isinstance(arguments, str) else arguments


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that boots once on each of its kernels: all if it is marked `every_kernel`, else the newest."""
    marked = metafunc.definition.get_closest_marker("every_kernel") is not None
    own = [name for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark.args[0])]
    for name in _BOOTED:
        if name in metafunc.fixturenames and name not in own:
            metafunc.parametrize(name, KERNELS if marked else NEWEST, indirect=True)


@pytest.fixture
def boot(request: pytest.FixtureRequest) -> Boot:
    """A test that takes this runs once per kernel."""
    return _Boot(request.param)


@pytest.fixture(scope="module")
def boot_once(request: pytest.FixtureRequest) -> Boot:
    """For fixtures whose one boot per kernel several tests look at."""
    return _Boot(request.param)


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> str:
    """A test that takes this runs once per kernel, and boots it by itself."""
    name: str = request.param
    return name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as setup would leave it, with files of a few bytes: enough for all that boots nothing."""
    root = tmp_path / "cache"
    release = "7.3.0-test"
    files: dict[str, bytes] = {
        "qemu/one/bin/qemu-system-x86_64": b"qemu",
        "qemu/one/share/qemu/bios.bin": b"bios",
        f"kernels/{release}/vmlinuz": bzimage(release),
        f"kernels/{release}/config": b"CONFIG_HZ=250\n",
        "kernels/index.json": json.dumps({"7.3": release}).encode(),
        "image/one/base.cpio": cpio.pack(
            {
                **{f"/usr/bin/{program}": (0o755, b"x") for program in ("heddle-load", "hackbench", "sh")},
                "/usr/lib/x86_64-linux-gnu/libc.so.6": (0o644, b"x"),
                "/usr/lib64/ld-linux-x86-64.so.2": (0o755, b"x"),
            }
        ),
        "image/one/stress.cpio": cpio.pack({"/usr/bin/stress-ng": (0o755, b"x")}),
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "qemu/current").symlink_to("one")
    (root / "image/current").symlink_to("one")
    monkeypatch.setenv("HEDDLE_CACHE", str(root))
    return root


def bzimage(release: str) -> bytes:
    """Return the header of a bzImage of a release (Documentation/arch/x86/boot.rst)."""
    text = 0x400
    header = bytearray(0x200 + text)
    header[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", header, 0x20E, text)
    return bytes(header) + release.encode() + b" (someone@somewhere) #1\0"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests recorded by `record_property`: numbers that are worth keeping, beside pass and fail."""
    recorded = [item for report in terminalreporter.stats.get("passed", []) for item in report.user_properties]
    if recorded:
        terminalreporter.section("recorded")
    for name, value in recorded:
        terminalreporter.write_line(f"{name}: {value}")
