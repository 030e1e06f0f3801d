"""The back end `host`: the same job on this machine, by its own clock. Repetitions take the place of seeds.

Wall time is not deterministic. So results are kept in the folder of their run, never in the store of the guests'
cells: a run into the same folder goes on where it stopped, one into another folder measures all anew.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heddle_lab import files, hashing, hostfiles, image, machine
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment
from heddle_lab.hardware import machinefile
from heddle_lab.job import CgroupSet, KillScheduler, SchedulerStart, SchedulerStop, Step, Write
from heddle_lab.kernels import Kernel
from heddle_lab.machine import Machine
from heddle_lab.native import cgroups, run
from heddle_lab.native.scheduler import SCHED_EXT
from heddle_lab.progress import Reporter
from heddle_lab.results import Results
from heddle_lab.runner import Failure, Outcome, Plan, Progress
from heddle_lab.store import Store

NAME = "host"

STORE = "host"
"""folder of the run's records, in the run's folder"""

MACHINE = "machine.toml"
"""this machine, in the run's folder"""


class RunningKernel(Kernel):
    """The kernel of this machine."""

    def fingerprint(self) -> list[str]:
        """Return what tells this kernel from others."""
        return [os.uname().release, os.uname().version]


class HostCell(Cell):
    """A cell that this machine runs."""

    def inputs(self) -> dict[str, Any]:
        """Return everything that is known to change the result, as plain data; the machine's load is not."""
        layers, files = self.workload.userland(), hostfiles.fingerprint(self.workload.host_files())
        return {
            "backend": NAME,
            "machine": self.machine.fingerprint(),
            "kernel": " ".join(self.kernel.fingerprint()),
            "image": [hashing.of_file(file) for file in image.layer_files(layers)],
            "scheduler": self.scheduler.fingerprint(layers),
            "job": self.job().model_dump(mode="json"),
        } | ({"files": files} if files else {})


class Host:
    """This machine."""

    def __init__(self, folder: Path, machines: list[str], kernels: list[str]) -> None:
        """Set up the back end.

        Args:
            folder: of the run.
            machines: the file that stands for this machine in tables, as `--machine` takes it; none: one is written
                to the folder.
            kernels: none; the one that runs is measured.

        Raises:
            HeddleError: a machine or a kernel is another one than this, or the folder cannot be written.
        """
        if kernels:
            raise HeddleError(f"--kernel {kernels[0]}: the host back end measures the kernel that runs; leave it out")
        if len(machines) > 1:
            raise HeddleError("the host back end measures this machine: give one --machine, its file, or none")
        files.make_folder(folder)
        self._folder = folder
        self._store = Store(folder / STORE)
        self._machine = self._of_file(machines[0]) if machines else self._written()

    def _written(self) -> Machine:
        text, _ = machinefile.write(machinefile.read(Path("/")))
        files.write_text(self._folder / MACHINE, text)
        return machine.load(str(self._folder / MACHINE))

    def _of_file(self, name: str) -> Machine:
        here, box = self._written(), machine.load(name)
        if box.topology != here.topology:
            sides = f"{box.topology.shape} there, {here.topology.shape} here"
            raise HeddleError(f"--machine {name}: it is not this machine: {sides}; `heddle machine` writes the file")
        return box

    def cells(self, wanted: Experiment, origins: Mapping[str, str]) -> list[Cell]:
        """Return the cells of an experiment on this machine, one after the other as they are to run.

        Its machines and kernels are guests', and do not count. For each repetition and point the contestants follow
        each other, in the other order every other time, so that what changes slowly changes all alike.

        Raises:
            HeddleError: the experiment needs a guest.
        """
        if wanted.trace or wanted.robust:
            raise HeddleError("--trace and --robust take a guest: leave them out, or use --backend clock")
        of_guests = wanted.model_copy(update={"machines": wanted.machines[:1], "kernels": wanted.kernels[:1]})
        return list(_interleaved([self.here(cell) for cell in of_guests.cells(origins)]))

    def here(self, cell: Cell) -> HostCell:
        """Return a guest's cell as this machine runs it, on the kernel that runs.

        Raises:
            HeddleError: the cell needs a guest.
        """
        release = os.uname().release
        version = Path("/proc/version")
        kernel = RunningKernel(name=release, release=release, option=release, image=version, config=version)
        found = HostCell(**(dict(cell) | {"machine": self._machine, "kernel": kernel, "backend": NAME}))
        _refuse(found)
        return found

    def run(self, cells: list[Cell], how: Mapping[str, Any], reporter: Reporter) -> Outcome:
        """Measure the cells that the run's folder lacks, one at a time; with `fresh` all of them; see `Backend`."""
        if how["dask_address"] or how["cold"] or (how["jobs"] or 1) > 1:
            raise HeddleError("--jobs, --dask and --cold take a guest: this machine runs one cell at a time")
        keys = {cell.key(): cell for cell in cells}
        results = {} if how["fresh"] else {key: found for key in keys if (found := self._store.get(key))}
        missing = {key: cell for key, cell in keys.items() if key not in results}
        reporter.announce(Plan(missing=len(missing), stored=len(results), jobs=1, expected_s=None))
        failures: list[Failure] = []
        interrupted = False
        try:
            for key, result in self._measure(missing, len(results), reporter):
                if isinstance(result, Results):
                    results[key] = result
                else:
                    failures.append(Failure(cell=missing[key].label, error=result))
        except KeyboardInterrupt:
            interrupted = True
        ordered = {key: results[key] for key in keys if key in results}
        return Outcome(results=ordered, failures=failures, interrupted=interrupted)

    def _measure(
        self, missing: dict[str, Cell], stored: int, reporter: Reporter
    ) -> Iterator[tuple[str, Results | str]]:
        """Yield each cell's key with its results, or with the line that says why there are none."""
        start = time.monotonic()
        for done, (key, cell) in enumerate(missing.items(), start=1):
            layers = cell.workload.userland()
            given = cell.scheduler.files(layers) | hostfiles.contents(cell.workload.host_files())
            found = run.run(cell.job(), layers, given)
            if not found.error:
                self._store.put(key, found)
            left = len(missing) - done
            reporter.show(
                Progress(
                    done=stored + done,
                    total=stored + len(missing),
                    cell=cell.label,
                    failed=bool(found.error),
                    remaining_s=(time.monotonic() - start) / done * left if left else None,
                )
            )
            yield key, found.error or found


def _interleaved(cells: list[HostCell]) -> Iterator[HostCell]:
    """Yield cells point by point of each repetition; every other repetition turns the contestants round."""
    groups: dict[tuple[int, str], list[HostCell]] = {}
    for cell in cells:
        groups.setdefault((cell.seed, cell.point), []).append(cell)
    for (seed, _), group in groups.items():
        yield from group if seed % 2 else reversed(group)


def _refuse(cell: HostCell) -> None:
    """Refuse what this machine cannot do, or what would change its settings."""
    settings = cell.contestant.variant
    if settings and (settings.kernel or settings.cmdline):
        raise HeddleError(f"variant '{settings.name}': its kernel or command line takes a boot: use --backend clock")
    if cell.scheduler.argv and not SCHED_EXT.is_dir():
        why = f"this kernel ({cell.kernel.release}) has no sched_ext: {SCHED_EXT} is missing"
        raise HeddleError(
            f"scheduler '{cell.scheduler.name}': {why}; measure {cell.scheduler.name} with --backend clock"
        )
    if cell.scheduler.argv and os.geteuid():
        raise HeddleError(f"scheduler '{cell.scheduler.name}': only root may load it; run `sudo bin/heddle run ...`")
    if shutil.which("unshare") is None:
        raise HeddleError("the host back end needs `unshare` of util-linux")
    for step in cell.job().steps:
        if why := unfit(step):
            raise HeddleError(f"workload '{cell.workload.name}': step '{step.name}' {why}: use --backend clock")


def unfit(step: Step) -> str:
    """Return why a step is for guests only; empty if it is not."""
    match step.action:
        case Write(path=path):
            return f"writes {path}, a setting of this machine"
        case SchedulerStart() | SchedulerStop() | KillScheduler():
            return "starts or stops a scheduler by itself"
        case CgroupSet(file=file) if file not in cgroups.FILES:
            return f"sets {file}, which is not one of {', '.join(cgroups.FILES)}"
    if (step.cgroup or isinstance(step.action, CgroupSet)) and (why := cgroups.refusal()):
        return f"takes a cgroup, and {why}"
    if step.trace:
        return "is traced"
    return ""
