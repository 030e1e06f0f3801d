"""Plays a recorded load once under the kernel's own scheduler, traced, and compares that with its trace."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from heddle_lab import fidelity, files, machine, recording, scheduler, tracing, units, variant, vm, workload
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.fidelity import Fidelity
from heddle_lab.kernels import Kernel
from heddle_lab.machine import Machine
from heddle_lab.measures import timeline
from heddle_lab.recording import Load
from heddle_lab.workload import Workload

STRETCHES = (1.0, 2.0, 4.0)
"""how many times slower a load is played: four times, as the kernel of most machine models is (`slowdown`)"""

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


def best(
    recorded: Load, write: Callable[[float], Path], box: Machine, kernel: Kernel, stretches: Sequence[float]
) -> Fidelity:
    """Replay a recorded load, write into its file how that compares with the trace, and return it.

    Args:
        recorded: what the trace shows.
        write: writes the workload's file, such that it is played so many times slower than it was; returns its path.
        box: the machine.
        kernel: the guest's.
        stretches: in their order; the first one that matches is kept, else the one that is closest.

    Raises:
        HeddleError: a replay failed, its trace lacks events, or the file cannot be written.
    """
    tried: dict[float, Fidelity] = {}
    for stretch in stretches:
        tried[stretch] = found = compare(recorded, write(stretch), box, kernel)
        if not found.mismatch(found.workload):
            break
    closest = min(tried, key=lambda stretch: tried[stretch].distance())
    file, found = write(closest), tried[closest]
    files.write_text(file, recording.with_fidelity(file.read_text(encoding="utf-8"), found.model_dump()))
    return found


def compare(recorded: Load, file: Path, box: Machine, kernel: Kernel) -> Fidelity:
    """Replay a recorded workload and return how that compares with the trace.

    Raises:
        HeddleError: the replay failed, or its trace lacks events.
    """
    load = workload.load(str(file))
    return Fidelity(
        machine=box.name,
        kernel=kernel.name,
        workload=load.sha256(),
        compared=fidelity.compare(recorded, replay(recorded, load, box, kernel)),
    )


def replay(recorded: Load, load: Workload, box: Machine, kernel: Kernel) -> Load:
    """Replay a workload under the kernel's own scheduler and return what its trace shows, in the recorded trace's time.

    Raises:
        HeddleError: the replay failed, or its trace lacks events.
    """
    params = load.parameters({"trace_cpus": box.cpus})
    cell = Cell(
        machine=box,
        kernel=kernel,
        contestant=variant.of_scheduler(scheduler.EEVDF),
        workload=load,
        params=params,
        seed=1,
        traced=True,
    )
    results = vm.run(cell.guest()).check()
    names = {group.name for group in recorded.groups}
    played = json.loads(results.step(cell.measured_step).stdout)
    begin, stretch = played["begin_ns"], float(params["stretch"])
    events = tracing.events_of(results, cell.measured_step)
    events = replace(events, time_ns=begin + ((events.time_ns - begin) / stretch).astype(np.int64))
    # Before and after it threads begin and end, which is no part of the trace.
    line = timeline.window(tracing.line_of(events, results), begin, begin + round(played["length_ns"] / stretch))
    return recording.of_timeline(line, events, lambda _, comm: recording.group_name(comm) in names)
