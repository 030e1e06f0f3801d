"""Plays a recorded load once under the kernel's own scheduler, traced, and compares that with its trace."""

from pathlib import Path

from heddle_lab import fidelity, files, machine, recording, scheduler, tracing, units, vm, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.fidelity import Fidelity
from heddle_lab.kernels import Kernel
from heddle_lab.machine import Machine
from heddle_lab.recording import Load

_ALIKE = "smp-4"
"""the machine whose memory and costs one of as many CPUs as a trace has"""

_MEMORY_MIB = 1024
_MEMORY_PER_CPU_MIB = 128


def box_of(cpus: int) -> Machine:
    """Return a machine with a number of CPUs that share one LLC.

    Raises:
        HeddleError: there are more than a machine can have.
    """
    alike = machine.load(_ALIKE)
    content = alike.model_dump() | {
        "name": f"smp-{cpus}",
        "summary": f"{units.counted(cpus, 'CPU')} sharing one LLC",
        "memory_mib": max(_MEMORY_MIB, _MEMORY_PER_CPU_MIB * cpus),
    }
    content["topology"] = {"cores": cpus}
    try:
        return Machine.model_validate(content)
    except ValueError as error:
        why = f"the trace has {cpus} CPUs, and a machine at most {machine.MOST_CPUS}"
        raise HeddleError(f"{why}: name a smaller machine by --check, or compare nothing by --no-check") from error


def replay(recorded: Load, file: Path, box: Machine, kernel: Kernel) -> Load:
    """Replay a workload under the kernel's own scheduler, traced, and return what its trace shows.

    Raises:
        HeddleError: the replay failed, or its trace lacks events.
    """
    load = workload.load(str(file))
    cell = Cell(
        machine=box,
        kernel=kernel,
        scheduler=scheduler.parse(scheduler.EEVDF),
        workload=load,
        params=load.parameters({}),
        seed=1,
        traced=True,
    )
    results = vm.run(cell.guest()).check()
    events = tracing.events_of(results, cell.measured_step)
    names = {group.name for group in recorded.groups}
    return recording.of_events(events, lambda _, comm: recording.group_name(comm) in names)


def compare(recorded: Load, file: Path, box: Machine, kernel: Kernel) -> Fidelity:
    """Replay a recorded workload, and write into its file how that compares with the trace. Return it.

    Raises:
        HeddleError: the replay failed, its trace lacks events, or the file cannot be written.
    """
    replayed = replay(recorded, file, box, kernel)
    found = Fidelity(
        machine=box.name,
        kernel=kernel.name,
        workload=workload.load(str(file)).sha256(),
        compared=fidelity.compare(recorded, replayed),
    )
    text = file.read_text(encoding="utf-8")
    files.write_text(file, recording.with_fidelity(text, found.model_dump()))
    return found
