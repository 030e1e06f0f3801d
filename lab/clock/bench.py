"""Measures the simulation rate and writes RATES.md: `make rates`."""

import os
import platform
from pathlib import Path

from clock import guests
from heddle_lab import experiment, kernels, paths, resultfile, scheduler, tomlfile, vm
from heddle_lab import machine as machines
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import DEFAULT_KERNEL, Overrides
from heddle_lab.job import Job, Step
from heddle_lab.machine import Caches, Clock, Machine, Topology

REPORT = Path(__file__).with_name("RATES.md")
MACHINES = (
    Topology(cores=4),
    Topology(dies=2, cores=4, threads=2),
    Topology(dies=4, cores=8, threads=2),
    Topology(sockets=2, dies=6, cores=8, threads=2),
)
QUANTA = (10_000, 5_000, 2_000, 1_000)
"""ns; the rate is measured with each on the second machine"""
MODELLED = "smp-16-2llc"
"""the machine that the rate with and without SMT and cold caches is measured on"""
WAKE_COUNT = 400
"""wakeups from each CPU to each other: a switch every few microseconds, what the cold caches' part of the clock looks
at; some ten seconds of host time, so that pairs differ by a few per cent"""
PAIRS = 3
"""runs without and with the model, in turn; the median pair counts"""
SMOKE = "smoke"
"""the experiment whose first cell under scx_heddle each shipped machine runs"""
LARGE = "xeon-4s-192"
"""the machine whose CPUs all compute, by one instruction and by loops"""
HOGS_MS = 1000
"""of virtual time"""
BOUND = {
    "the kernel": ["hackbench", "-g", "1", "-f", "10", "-l", "1000", "-s", "100"],
    "computing, by loops": ["heddle-load", "spin", "--threads", "16", "--for-ms", "500"],
}
"""loads that spend their time in the kernel, and in user code, on the 16 CPUs of MODELLED"""
SUITE = "suite"
"""the published experiment whose cells are added up"""
SPIN_INSNS = 3_000_000_000
"""of all CPUs together, long enough for the boot before it to be a small part"""
MEMORY_MIB = 2048
JOB_TIMEOUT_NS = 60_000_000_000

HEAD = """# Simulation rate

Written by `make rates`, on {cpus} CPUs of {model}, load {load:.1f} before the start.

Times are of host CPU, since other load on the host would add to wall time; one QEMU uses one core, so on an idle
host both are the same. The rate is of spinning CPUs, without the boot.

| CPUs | million instructions/s | kernel boot | its instructions | to agent ready and off again | wall |
|-----:|-----------------------:|------------:|-----------------:|-----------------------------:|-----:|
"""

QUANTUM_HEAD = """
The same rate by quantum, with {cpus} CPUs:

| quantum | million instructions/s |
|--------:|-----------------------:|
"""

MODEL_HEAD = """
With and without the SMT and cache model of {name}; the second row is of tasks that wake each other all the time. Each
is the median of {pairs} pairs, one run after the other, with the least and the largest share beside it:

| load | without, million instructions/s | with | share | least | largest |
|------|--------------------------------:|-----:|------:|------:|--------:|
"""

MACHINES_HEAD = """
The wall time of cells on the shipped machines, Linux {kernel}, under scx_heddle, booted (`--cold`) and from a snapshot.
The first two columns are of a cell without any step, and so bound the time to the first instruction of a job. The
others are of `{point}` of the experiment {name}.

| machine | CPUs | start and end, booted | from a snapshot | cell, booted | from a snapshot |
|---------|-----:|----------------------:|----------------:|-------------:|----------------:|
"""

COSTS_HEAD = """
What the costs of the hardware take of the host on {name}, each line the median of {pairs} pairs of the same work, one
run after the other, less what a cell without any step takes:

| load | host CPU without costs | with | share | least | largest |
|------|-----------------------:|-----:|------:|------:|--------:|
"""

HOGS_HEAD = """
`heddle-load spin` on all CPUs of {name} for {for_ms} ms of virtual time, less what a cell without any step takes:

| loads compute | host CPU |
|---------------|---------:|
"""

SUITE_TEXT = """
[The published {name}](../../docs/results/{name}/table.md) took {hours:.1f} host hours: {cells} cells on {machines}.
"""


def main() -> None:
    """Measure every machine and quantum, and write the report."""
    text = HEAD.format(cpus=os.cpu_count(), model=_host_model(), load=os.getloadavg()[0])
    for topology in MACHINES:
        boot = guests.linux("idle,1", topology)
        rate = _rate(topology, Clock(), boot)
        bare = Machine(name="bench", summary="", source="", memory_mib=MEMORY_MIB, topology=topology)
        nothing = Job(seed=1, timeout_ns=JOB_TIMEOUT_NS, scheduler=None, steps=[])
        cpu_s, wall_s = _guest(vm.Guest(machine=bare, kernel=kernels.find(guests.KERNEL), job=nothing), cold=True)
        text += (
            f"| {topology.cpus} | {rate / 1e6:.0f} | {boot.cpu_s:.1f} s | {boot.insns / 1e9:.2f} billion "
            f"| {cpu_s:.1f} s | {wall_s:.1f} s |\n"
        )
    topology = MACHINES[1]
    text += QUANTUM_HEAD.format(cpus=topology.cpus)
    for quantum_ns in QUANTA:
        clock = Clock(quantum_ns=quantum_ns)
        boot = guests.linux("idle,1", topology, clock)
        text += f"| {quantum_ns / 1000:g} µs | {_rate(topology, clock, boot) / 1e6:.0f} |\n"
    REPORT.write_text(text + _model() + _costs() + _machines() + _hogs() + _suite(), encoding="utf-8")


def _model() -> str:
    """Return the table of rates with and without the model of a machine."""
    box = machines.load(MODELLED)
    text = MODEL_HEAD.format(name=MODELLED, pairs=PAIRS)
    loads = {
        "spinning": f"spin,{box.cpus},{box.cpus},{SPIN_INSNS // box.cpus}",
        "waking": f"wake,{box.cpus},{WAKE_COUNT},1",
    }
    models = [(Clock(), None), (box.clock, box.caches)]
    boots = [guests.linux("idle,1", box.topology, *model) for model in models]
    for load, command in loads.items():
        pairs = sorted((_pair(command, box, models, boots) for _ in range(PAIRS)), key=_share)
        without, with_ = pairs[PAIRS // 2]
        shares = " | ".join(f"{_share(pairs[place]):.0%}" for place in (PAIRS // 2, 0, -1))
        text += f"| {load} | {without / 1e6:.0f} | {with_ / 1e6:.0f} | {shares} |\n"
    return text


def _pair(
    command: str, box: Machine, models: list[tuple[Clock, Caches | None]], boots: list[guests.Run]
) -> tuple[float, float]:
    """Return the rates of one command without and with the model, of runs one right after the other."""
    runs = [guests.linux(command, box.topology, *model) for model in models]
    without, with_ = (
        (run.insns - boot.insns) / (run.cpu_s - boot.cpu_s) for run, boot in zip(runs, boots, strict=True)
    )
    return without, with_


def _share(pair: tuple[float, float]) -> float:
    return pair[1] / pair[0]


def _machines() -> str:
    """Return the table of what a cell takes on each shipped machine, booted and from a snapshot."""
    rows = []
    for box in sorted(map(machines.load, tomlfile.names(paths.MACHINES)), key=lambda box: (box.cpus, box.name)):
        cell = _cell(box.name)
        nothing = _without_steps(cell.guest())
        _guest(nothing)  # makes the snapshots
        walls = [_guest(guest, cold=cold)[1] for guest in (nothing, cell.guest()) for cold in (True, False)]
        rows.append(f"| {box.name} | {box.cpus} | {' | '.join(f'{wall_s:.1f} s' for wall_s in walls)} |\n")
    return MACHINES_HEAD.format(point=cell.point, name=SMOKE, kernel=DEFAULT_KERNEL) + "".join(rows)


def _costs() -> str:
    """Return the table of what the costs of the hardware take of the host."""
    guest = _without_steps(_cell(MODELLED).guest()).model_copy(update={"compute": False})
    bare = guest.model_copy(update={"machine": guest.machine.model_copy(update={"costs": machines.Costs()})})
    text = COSTS_HEAD.format(name=MODELLED, pairs=PAIRS)
    for one in (bare, guest):
        _guest(one)  # makes the snapshots
    for load, argv in BOUND.items():
        pairs = sorted(((_work(bare, argv), _work(guest, argv)) for _ in range(PAIRS)), key=_share)
        without, with_ = pairs[PAIRS // 2]
        shares = " | ".join(f"{_share(pairs[place]):.2f}" for place in (PAIRS // 2, 0, -1))
        text += f"| {load} | {without:.1f} s | {with_:.1f} s | {shares} |\n"
    return text


def _work(empty: vm.Guest, argv: list[str]) -> float:
    """Return the host CPU seconds of one command in a guest, without those of the guest's start and end."""
    job = empty.job.model_copy(update={"steps": [Step(name="work", argv=argv)]})
    return _guest(empty.model_copy(update={"job": job}))[0] - _guest(empty)[0]


def _hogs() -> str:
    """Return the table of what computing takes on the largest machine, by one instruction and by loops."""
    guest = _without_steps(_cell(LARGE).guest())
    argv = ["heddle-load", "spin", "--threads", str(guest.machine.cpus), "--for-ms", str(HOGS_MS)]
    job = guest.job.model_copy(update={"steps": [Step(name="hogs", argv=argv)]})
    text = HOGS_HEAD.format(name=LARGE, for_ms=HOGS_MS)
    for how, compute in (("by loops", False), ("by one instruction", True)):
        empty = guest.model_copy(update={"compute": compute})
        _guest(empty)  # makes the snapshots
        costs = [_guest(one)[0] for one in (empty, empty.model_copy(update={"job": job}))]
        text += f"| {how} | {costs[1] - costs[0]:.1f} s |\n"
    return text


def _suite() -> str:
    """Return what the published suite cost, as its cells say."""
    cells = resultfile.read(paths.REPOSITORY / "docs" / "results" / SUITE)
    boxes = ", ".join(dict.fromkeys(cell.machine for cell in cells))
    hours = sum(cell.metrics[resultfile.WALL_METRIC] for cell in cells) / 3600
    return SUITE_TEXT.format(name=SUITE, hours=hours, cells=len(cells), machines=boxes)


def _cell(machine: str) -> Cell:
    """Return the smoke cell on a machine."""
    overrides = Overrides(machines=[machine], kernels=[DEFAULT_KERNEL], schedulers=[scheduler.HEDDLE])
    return overrides.apply(experiment.load(SMOKE)).cells()[0]


def _without_steps(guest: vm.Guest) -> vm.Guest:
    return guest.model_copy(update={"job": guest.job.model_copy(update={"steps": []})})


def _rate(topology: Topology, clock: Clock, boot: guests.Run) -> float:
    """Return instructions per second of host CPU time while all CPUs spin."""
    cpus = topology.cpus
    spin = guests.linux(f"spin,{cpus},{cpus},{SPIN_INSNS // cpus}", topology, clock)
    return (spin.insns - boot.insns) / (spin.cpu_s - boot.cpu_s)


def _guest(guest: vm.Guest, *, cold: bool = False) -> tuple[float, float]:
    """Return host CPU time and wall time of a guest, until it powers off.

    Args:
        guest: what runs.
        cold: from power-on, not from a snapshot, which is made if there is none.

    Raises:
        HeddleError: names the machine and what failed in the guest.
    """
    before = os.times()
    results = vm.run(guest, cold=cold)
    after = os.times()
    if results.error:
        raise HeddleError(f"{guest.machine.name}: {results.error}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, results.wall_s


def _host_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
