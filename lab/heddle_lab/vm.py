"""One boot: a machine, a kernel, a job; a QEMU that ends; results or an error, never a hang."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from heddle_lab import cpio, image, paths
from heddle_lab.errors import HeddleError
from heddle_lab.job import Job
from heddle_lab.kernels import Kernel
from heddle_lab.machine import CPU_MODEL, Machine
from heddle_lab.results import Record, Results
from heddle_lab.tomlfile import Model

WALL_TIMEOUT_S = 600.0
"""default limit of one boot in wall seconds; the limits that matter are the job's, in virtual time"""

CPU = f"{CPU_MODEL},vendor=GenuineIntel,level=0x1e,-monitor,-rdrand,-rdseed,-erms,-fsrm"
"""Intel's leaves describe dies (one LLC each); MWAIT would be a busy loop; no entropy from the host.

Without fast string instructions (and with REP_GOOD cleared below) the kernel copies and clears by plain moves.
TCG runs each iteration of a REP as an instruction of its own, through its main loop: a cleared page would cost
4,096 turns, slow in wall time and, at one instruction a byte, far from what any hardware takes.
"""

_COMMAND_LINE = (
    "console=ttyS0 quiet loglevel=4 panic=-1 "  # a panic reboots at once, and -no-reboot makes that an end
    "norandmaps nokaslr random.trust_cpu=0 "  # only the seed decides
    "tsc=reliable tsc_early_khz=1000000 "  # the TSC is virtual time, 1 ns a tick: nothing to check or to measure
    "idle=halt "  # HLT is what ends a CPU's part of a round early
    "cryptomgr.notests mitigations=off clearcpuid=rep_good"
)

_INITRD = "initrd"
_RESULTS, _TRACE, _CONSOLE, _STDERR = "results.jsonl", "trace.txt", "console.log", "qemu.log"


_ROOM = 1 << 16
"""bytes"""


class Guest(Model):
    """Everything that decides what happens between power-on and power-off."""

    machine: Machine
    kernel: Kernel
    job: Job
    layers: tuple[str, ...] = ()
    """image layers beside the base"""
    files: dict[str, tuple[int, bytes]] = Field(default={}, repr=False)
    """more files for the guest: path -> (mode, content)"""
    boot_parameters: tuple[str, ...] = ()
    """of the kernel, beside those that every guest has; no cell has any"""
    compute: bool = True
    """whether one instruction stands for a load's loop; no cell executes them, as virtual time is the same"""


def run(
    guest: Guest, wall_timeout_s: float = WALL_TIMEOUT_S, scratch: Path | None = None, counts: Path | None = None
) -> Results:
    """Boot a guest and return what it reported.

    Args:
        guest: what to boot.
        wall_timeout_s: the guest is killed after this many wall seconds.
        scratch: folder for the run's files, about the image's size; none: the system's temporary folder.
        counts: file for the instructions that are executed between two marks (`profile`), one by one, loads' loops
            too; none: they are not counted.

    Returns:
        The results; their `error` says what failed in the guest, if anything did.

    Raises:
        HeddleError: the guest could not be started at all: a file is missing, the disk is full.
    """
    if counts:
        guest = guest.model_copy(update={"compute": False})
    with _folder(guest, scratch) as folder:
        return _boot(guest, folder, wall_timeout_s, counts)


def console(guest: Guest) -> None:
    """Boot a guest with its console on this terminal; returns when it powers off.

    Raises:
        HeddleError: the guest could not be started: a file is missing, the disk is full.
    """
    with _folder(guest, None) as folder:
        serial = ["-chardev", "stdio,id=console,signal=off,mux=on", "-mon", "chardev=console"]
        subprocess.run(_command(guest, folder, serial), check=False)


@contextmanager
def _folder(guest: Guest, scratch: Path | None) -> Iterator[Path]:
    """Give a folder for a boot's files, with the initrd in it.

    Raises:
        HeddleError: a file is missing or the disk is full, now or while the boot writes there.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="heddle-", dir=scratch) as name:
            _write_initrd(guest, Path(name) / _INITRD)
            yield Path(name)
    except OSError as error:
        raise HeddleError(
            f"cannot run a guest: {error.strerror or error} ({error.filename or scratch or 'TMPDIR'})"
        ) from error


def _write_initrd(guest: Guest, target: Path) -> None:
    """Concatenate the image's layers and the archive made for this run; the kernel unpacks them in order."""
    own = {
        f"/boot/config-{guest.kernel.release}": (0o644, guest.kernel.config.read_bytes()),
        "/heddle/job.json": (0o644, guest.job.model_dump_json().encode()),
    }
    with target.open("wb") as out:
        for layer in image.layer_files(guest.layers):
            with layer.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
        out.write(cpio.pack(own | guest.files))


def command_line(kernel: Kernel, machine: Machine) -> str:
    """Return the kernel's arguments; they are part of every cell's hash.

    The delay loop's count is given (TSC ticks per jiffy), or else every CPU measures it for 75 ms at boot.
    """
    return f"{_COMMAND_LINE} lpj={1_000_000_000 // kernel.hz} {machine.kernel_arguments()}".rstrip()


def _command(guest: Guest, folder: Path, console_device: list[str]) -> list[str]:
    """Return QEMU's command line. Nothing in it depends on the host, and nothing enters after power-on."""
    ports = []
    for number, (name, file) in enumerate((("heddle.results", _RESULTS), ("heddle.trace", _TRACE)), start=1):
        # A file chardev is synchronous: the host's speed cannot reach virtual time.
        ports += ["-chardev", f"file,id=port{number},path={folder / file}"]
        ports += ["-device", f"virtserialport,bus=ports.0,nr={number},name={name},chardev=port{number}"]
    return [
        *("setpriv", "--pdeathsig", "KILL"),  # a killed worker leaves no guest behind
        str(paths.qemu()),
        *("-L", str(paths.firmware())),
        *("-M", "q35", "-accel", "tcg,thread=single", "-cpu", CPU),
        *guest.machine.qemu_arguments(guest.kernel, compute=guest.compute),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-rtc", "base=2026-01-01,clock=vm", "-seed", str(guest.job.seed)),
        *("-kernel", str(guest.kernel.bootable()), "-initrd", str(folder / _INITRD)),
        *("-append", " ".join((command_line(guest.kernel, guest.machine), *guest.boot_parameters))),
        *console_device,
        *("-device", "isa-serial,chardev=console"),
        *("-device", "virtio-serial-pci,id=ports,ioeventfd=off"),
        *ports,
    ]


def _boot(guest: Guest, folder: Path, wall_timeout_s: float, counts: Path | None) -> Results:
    serial = ["-chardev", f"file,id=console,path={folder / _CONSOLE}"]
    counter = ["-plugin", f"{paths.profiler('instructions.so')},out={counts}"] if counts else []
    start = time.monotonic()
    with (folder / _STDERR).open("wb") as log:
        # A session of its own: Ctrl-C reaches the runner, which decides what becomes of its guests.
        qemu = subprocess.Popen(
            [*_command(guest, folder, serial), *counter],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            qemu.wait(wall_timeout_s)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            qemu.kill()
            qemu.wait()
    wall_s = time.monotonic() - start
    text = _read(folder / _CONSOLE)
    records = _records(_read(folder / _RESULTS))
    failure = None
    if not any(record.get("event") == "done" for record in records):
        log_text = _read(folder / _STDERR)
        failure = _failure(records, text, log_text, qemu.returncode, wall_timeout_s if timed_out else None)
        if _full(folder):
            failure = f"the disk is full: {folder} has no room for what the guest reports"
    return Results(
        records=records,
        console=text,
        trace_text=_read(folder / _TRACE),
        wall_s=round(wall_s, 3),
        failure=failure,
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _records(text: str) -> list[Record]:
    """Parse JSON lines; a last line cut short by a dying guest is dropped."""
    records = []
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def _full(folder: Path) -> bool:
    """Tell whether the disk of a folder has no room for a line: QEMU drops what it cannot write."""
    return shutil.disk_usage(folder).free < _ROOM


def _failure(records: list[Record], text: str, log: str, code: int, limit_s: float | None) -> str:
    """Say in one line why a guest ended without its `done` record."""
    last = f"after '{records[-1].get('name') or records[-1]['event']}'" if records else "before the agent was ready"
    if limit_s is not None:
        what = f"the guest hung {last}: killed after {limit_s:.0f} s of wall time"
    elif panic := re.search(r"Kernel panic - not syncing: (.*)", text):
        return f"the guest's kernel panicked {last}: {panic[1].strip()}"
    elif code != 0:
        what = f"QEMU died {last} (status {code})"
    else:
        what = f"the guest powered off {last} without finishing its job"
    tail = [line.strip() for line in (log if code > 0 else text).splitlines() if line.strip()][-5:]
    return f"{what}; last output: {' | '.join(tail)}" if tail else what
