"""One boot: a machine, a kernel, a job; a QEMU that ends; results or an error, never a hang."""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from pathlib import Path

from pydantic import Field

from heddle_lab import cpio, hashing, image, paths, payload
from heddle_lab.errors import HeddleError
from heddle_lab.job import Job
from heddle_lab.kernels import Kernel
from heddle_lab.machine import CPU_MODEL, Machine
from heddle_lab.monitor import Monitor
from heddle_lab.results import Record, Results
from heddle_lab.snapshots import Snapshots
from heddle_lab.tomlfile import Model

WALL_TIMEOUT_S = 600.0
"""default limit of one boot in wall seconds; the limits that matter are the job's, in virtual time"""

_CPU = f"{CPU_MODEL},vendor=GenuineIntel,level=0x1e,-rdrand,-rdseed,-erms,-fsrm"
"""Intel's leaves describe dies (one LLC each); no entropy from the host.

Without fast string instructions (and with REP_GOOD cleared below) the kernel copies and clears by plain moves.
TCG runs each iteration of a REP as an instruction of its own, through its main loop: a cleared page would cost
4,096 turns, slow in wall time and, at one instruction a byte, far from what any hardware takes.
"""

_COMMAND_LINE = (
    "console=ttyS0 quiet loglevel=4 panic=-1 "  # a panic reboots at once, and -no-reboot makes that an end
    "norandmaps nokaslr random.trust_cpu=0 "  # only the seed decides
    "tsc=reliable tsc_early_khz=1000000 "  # the TSC is virtual time, 1 ns a tick: nothing to check or to measure
    "cryptomgr.notests mitigations=off clearcpuid=rep_good"
)

_INITRD, _PAYLOAD, _STATE = "initrd", "payload", "state"
_RESULTS, _TRACE, _CONSOLE, _STDERR = "results.jsonl", "trace.txt", "console.log", "qemu.log"
_CLOCK = "clock.json"

_BEGIN_NS = 10_000_000_000
"""virtual uptime at which every job begins on CPUs of the usual speed; on slower ones it takes longer to get there"""

_USUAL_SPEED = 100
"""instructions per 100 virtual ns"""


class Mark(IntEnum):
    """Where a guest's state may be saved: the first two, which are those of `lab/guest/src/agent/snapshot.rs`."""

    BOOTED = 1
    """the kernel is up and the agent ready"""
    STARTED = 2
    """the job's scheduler is attached"""
    MEASURED = 3
    """the measured step of a profiled cell begins"""
    OVER = 4
    """it has ended"""


_REPORTED = (_RESULTS, _TRACE, _CONSOLE)
"""what a guest writes; a snapshot has copies, and a guest that goes on from it adds to them"""

_MIGRATION = [
    *("-global", "migration.mapped-ram=on"),  # pages have places in the file, and those of zeros are left out
    *("-global", "migration.x-ignore-shared=on"),  # the payload is not part of a snapshot
    *("-global", "migration.x-max-bandwidth=0"),  # no limit
    *("-global", "migration.store-global-state=off"),  # or the machine would be stopped, as it was when it was saved
]

_ROOM = 1 << 16
"""bytes"""


class Guest(Model):
    """Everything that decides what happens between power-on and power-off."""

    machine: Machine
    kernel: Kernel
    job: Job
    layers: tuple[str, ...] = ()
    """image layers beside the base"""
    files: payload.Files = Field(default={}, repr=False)
    """more files for the guest before its scheduler starts: path -> (mode, content)"""
    job_files: payload.Files = Field(default={}, repr=False)
    """likewise, before its job begins: no snapshot hangs on them"""
    boot_parameters: tuple[str, ...] = ()
    """of the kernel, behind those that every guest has"""
    compute: bool = True
    """whether one instruction stands for a load's loop; both take the same virtual time"""


def run(
    guest: Guest,
    wall_timeout_s: float = WALL_TIMEOUT_S,
    scratch: Path | None = None,
    counts: Path | None = None,
    *,
    transfers: Path | None = None,
    cold: bool = False,
) -> Results:
    """Run a guest, from a snapshot unless told otherwise, and return what it reported.

    Args:
        guest: what to run.
        wall_timeout_s: a QEMU is killed after this many wall seconds; making a snapshot takes one of its own.
        scratch: folder for the run's files, about the image's size; none: the system's temporary folder.
        counts: file for the instructions that are executed between two marks (`profile`), one by one, loads' loops
            too; none: they are not counted.
        transfers: file for the cache lines that move (`transfers`), of a machine that has some; none: they are not
            listed. The results are the same.
        cold: boot, and neither use nor make a snapshot; the results are the same.

    Returns:
        The results; their `error` says what failed in the guest, if anything did.

    Raises:
        HeddleError: the guest could not be started at all: a file is missing, the disk is full.
    """
    start = time.monotonic()
    if counts:
        guest = guest.model_copy(update={"compute": False})
    with _folder(guest, scratch) as folder:
        one = _Run(guest, folder, wall_timeout_s, _observer(counts, transfers))
        results = one.execute(None) if cold or counts else one.from_snapshot()
    return results.model_copy(update={"wall_s": round(time.monotonic() - start, 3)})


def console(guest: Guest) -> None:
    """Boot a guest with its console on this terminal; returns when it powers off.

    Raises:
        HeddleError: the guest could not be started: a file is missing, the disk is full.
    """
    with _folder(guest, None) as folder:
        _write_initrd(guest, folder / _INITRD)
        serial = ["-chardev", "stdio,id=console,signal=off,mux=on", "-mon", "chardev=console"]
        subprocess.run([*_command(guest, folder), *serial], check=False)


def begin_ns(machine: Machine) -> int:
    """Return the virtual uptime at which jobs begin on a machine, ns: the same for all kernels and schedulers."""
    return _BEGIN_NS * _USUAL_SPEED // min(_USUAL_SPEED, *(cpu.speed for cpu in machine.layout()))


@contextmanager
def _folder(guest: Guest, scratch: Path | None) -> Iterator[Path]:
    """Give a folder for a run's files, with what the guest is given in it.

    Raises:
        HeddleError: a file is missing or the disk is full, now or while the run writes there.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="heddle-", dir=scratch) as name:
            job = {"/heddle/job.json": (0o644, guest.job.model_dump_json().encode()), **guest.job_files}
            payload.write(Path(name) / _PAYLOAD, _start_part(guest), payload.pack(job))
            yield Path(name)
    except OSError as error:
        raise HeddleError(
            f"cannot run a guest: {error.strerror or error} ({error.filename or scratch or 'TMPDIR'})"
        ) from error


def _start_part(guest: Guest) -> bytes:
    """Return the archive of what the guest needs to start its scheduler, and to know when its job begins."""
    scheduler = guest.job.scheduler
    start = {"scheduler": scheduler and scheduler.model_dump(), "begin_ns": begin_ns(guest.machine)}
    return payload.pack({"/heddle/start.json": (0o644, json.dumps(start).encode()), **guest.files})


def _write_initrd(guest: Guest, target: Path) -> None:
    """Concatenate the image's layers and the kernel's configuration; the kernel unpacks them in order."""
    config = {f"/boot/config-{guest.kernel.release}": (0o644, guest.kernel.config.read_bytes())}
    with target.open("wb") as out:
        for layer in image.layer_files(guest.layers):
            with layer.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
        out.write(cpio.pack(config))


def cpu(machine: Machine) -> str:
    """Return QEMU's CPU model; it is part of every cell's hash."""
    return _CPU if machine.costs.mwait else f"{_CPU},-monitor"


def command_line(kernel: Kernel, machine: Machine) -> str:
    """Return the kernel's arguments; they are part of every cell's hash.

    The delay loop's count is given (TSC ticks per jiffy), or else every CPU measures it for 75 ms at boot. HLT ends a
    CPU's part of a round early, and so does MWAIT, which the kernel prefers where there is one.
    """
    idle = "" if machine.costs.mwait else "idle=halt "
    return f"{_COMMAND_LINE} {idle}lpj={1_000_000_000 // kernel.hz} {machine.kernel_arguments()}".rstrip()


def _box(guest: Guest) -> list[str]:
    """Return those of QEMU's options that decide what happens in a guest, and name no file of the host."""
    return [
        *("-M", "q35", "-accel", "tcg,thread=single", "-cpu", cpu(guest.machine)),
        *guest.machine.qemu_arguments(guest.kernel, compute=guest.compute),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-rtc", "base=2026-01-01,clock=vm", "-seed", "0"),  # the agent seeds the kernel anew, by the job
        *("-append", " ".join((command_line(guest.kernel, guest.machine), *guest.boot_parameters))),
        *("-device", "isa-serial,chardev=console"),
        *("-device", "virtio-serial-pci,id=ports,ioeventfd=off"),
        *("-device", "ivshmem-plain,memdev=payload,master=on"),
    ]


def _command(guest: Guest, folder: Path) -> list[str]:
    """Return QEMU's command line without its console. Nothing enters after power-on but what the payload holds."""
    ports = []
    for number, (name, file) in enumerate((("heddle.results", _RESULTS), ("heddle.trace", _TRACE)), start=1):
        # A file chardev is synchronous: the host's speed cannot reach virtual time.
        ports += ["-chardev", f"file,id=port{number},path={folder / file},append=on"]
        ports += ["-device", f"virtserialport,bus=ports.0,nr={number},name={name},chardev=port{number}"]
    memory = f"memory-backend-file,id=payload,share=on,size={payload.SIZE_BYTES},mem-path={folder / _PAYLOAD}"
    return [
        *("setpriv", "--pdeathsig", "KILL"),  # a killed worker leaves no guest behind
        str(paths.qemu()),
        *("-L", str(paths.firmware())),
        *("-kernel", str(guest.kernel.bootable()), "-initrd", str(folder / _INITRD)),
        *("-object", memory),
        *_box(guest),
        *ports,
    ]


def _observer(counts: Path | None, transfers: Path | None) -> list[str]:
    """Return the options of QEMU that have it write down what it sees, of which the guest notices nothing."""
    plugin = ["-plugin", f"{paths.profiler('instructions.so')},out={counts}"] if counts else []
    return plugin + (["-icount", f"line-transfers={transfers}"] if transfers else [])


class _Run:
    """A guest on its way from power-on, or from a snapshot, to power-off."""

    def __init__(self, guest: Guest, folder: Path, wall_timeout_s: float, observer: list[str]) -> None:
        """Take what `run` takes.

        Args:
            guest: what to run.
            folder: for the run's files.
            wall_timeout_s: of each QEMU.
            observer: options of the QEMU that runs the job.
        """
        self._guest = guest
        self._folder = folder
        self._wall_timeout_s = wall_timeout_s
        self._observer = observer

    def from_snapshot(self) -> Results:
        """Go on from the last snapshot before the job; those that are missing are made."""
        with self._snapshot(Mark.STARTED if self._guest.job.scheduler else Mark.BOOTED) as found:
            return found if isinstance(found, Results) else self.execute(found)

    def _snapshot(self, mark: Mark) -> AbstractContextManager[Path | Results]:
        """Give the snapshot of a mark, or the results of a guest that ended before it got there."""
        return Snapshots(paths.snapshots()).held(self._key(mark), lambda target: self._make(mark, target))

    def _make(self, mark: Mark, target: Path) -> Results | None:
        if mark is Mark.BOOTED:
            return self._save(None, mark, target)
        with self._snapshot(Mark.BOOTED) as base:
            return base if isinstance(base, Results) else self._save(base, mark, target)

    def _key(self, mark: Mark) -> str:
        """Return the hash of all that decides the guest's state at a mark."""
        guest = self._guest
        contents = [paths.qemu(), guest.kernel.bootable(), guest.kernel.config, *image.layer_files(guest.layers)]
        booted = hashing.of_data([_box(guest), [hashing.of_file(file) for file in contents]])
        if mark is Mark.BOOTED:
            return booted
        return hashing.of_data([booted, hashlib.sha256(_start_part(guest)).hexdigest()])

    def execute(self, base: Path | None) -> Results:
        """Run the guest to its end.

        Args:
            base: the snapshot that it goes on from; none: it boots.
        """
        with self._qemu(base, self._observer) as qemu:
            try:
                qemu.wait(self._wall_timeout_s)
            except subprocess.TimeoutExpired:
                return self._results(None)
        return self._results(qemu.returncode)

    def _save(self, base: Path | None, mark: Mark, target: Path) -> Results | None:
        """Run the guest to a mark, and save it there.

        Args:
            base: as in `execute`.
            mark: where it stops.
            target: folder for its state and for what it reported until then.

        Returns:
            Nothing, or the results of a guest that ended before.
        """
        with Monitor() as monitor:
            options = [*monitor.arguments(), "-icount", f"snapshot-at={mark:d}"]
            with self._qemu(base, options, (monitor.fd,)) as qemu:
                try:
                    stopped = monitor.wait_for_stop(self._wall_timeout_s)
                except TimeoutError:
                    return self._results(None)
                if stopped:
                    monitor.save(target / _STATE)
                qemu.wait()
        if not stopped:
            return self._results(qemu.returncode)
        for name in _REPORTED:
            shutil.copyfile(self._folder / name, target / name)
        return None

    @contextmanager
    def _qemu(
        self, base: Path | None, options: list[str], inherited: Sequence[int] = ()
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Give a QEMU that was just started; at the end of the context it has ended.

        Args:
            base: the snapshot that it loads; none: it boots.
            options: more of QEMU's.
            inherited: descriptors that it uses.
        """
        folder = self._folder
        initrd = folder / _INITRD
        for name in _REPORTED:
            (folder / name).unlink(missing_ok=True)
        if base is None:
            _write_initrd(self._guest, initrd)
            incoming = []
        else:
            initrd.write_bytes(b"\0")  # the guest has unpacked its own
            incoming = ["-incoming", f"file:{base / _STATE}"]
            for name in _REPORTED:
                shutil.copyfile(base / name, folder / name)
        serial = ["-chardev", f"file,id=console,path={folder / _CONSOLE},append=on"]
        counters = ["-icount", f"counters={folder / _CLOCK}"]
        command = [*_command(self._guest, folder), *serial, *counters, *_MIGRATION, *incoming, *options]
        with (folder / _STDERR).open("wb") as log:
            # A session of its own: Ctrl-C reaches the runner, which decides what becomes of its guests.
            qemu = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=inherited,
            )
            try:
                yield qemu
            finally:
                qemu.kill()
                qemu.wait()

    def _results(self, status: int | None) -> Results:
        """Collect what the guest reported.

        Args:
            status: of QEMU; none: it was killed when its wall time was over.
        """
        folder = self._folder
        text = _read(folder / _CONSOLE)
        records = _records(_read(folder / _RESULTS))
        failure = None
        if not any(record.get("event") == "done" for record in records):
            failure = _failure(records, text, _read(folder / _STDERR), status, self._wall_timeout_s)
            if _full(folder):
                failure = f"the disk is full: {folder} has no room for what the guest reports"
        clock = json.loads(_read(folder / _CLOCK) or "{}")
        trace = _read(folder / _TRACE)
        return Results(records=records, console=text, trace_text=trace, clock=clock, wall_s=0.0, failure=failure)


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


def _failure(records: list[Record], text: str, log: str, status: int | None, limit_s: float) -> str:
    """Say in one line why a guest ended without its `done` record."""
    last = f"after '{records[-1].get('name') or records[-1]['event']}'" if records else "before the agent was ready"
    if status is None:
        what = f"the guest hung {last}: killed after {limit_s:.0f} s of wall time"
    elif panic := re.search(r"Kernel panic - not syncing: (.*)", text):
        return f"the guest's kernel panicked {last}: {panic[1].strip()}"
    elif status != 0:
        what = f"QEMU died {last} (status {status})"
    else:
        what = f"the guest powered off {last} without finishing its job"
    tail = [line.strip() for line in (log if status and status > 0 else text).splitlines() if line.strip()][-5:]
    return f"{what}; last output: {' | '.join(tail)}" if tail else what
