"""Measures the simulation rate and writes RATES.md: `make rates`."""

import os
import platform
from pathlib import Path

from clock import guests
from heddle_lab import kernels, paths, tomlfile, vm
from heddle_lab import machine as machines
from heddle_lab.job import Job, Step
from heddle_lab.machine import Clock, Machine, Topology

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
TINY = Step(name="tiny", argv=["hackbench", "-g", "1", "-f", "2", "-l", "10"])
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
With and without the SMT and cache model of {name}, all CPUs spinning:

| without, million instructions/s | with | share |
|--------------------------------:|-----:|------:|
"""

MACHINES_HEAD = """
The shipped machines, with a job of one small hackbench:

| machine | CPUs | host CPU | wall |
|---------|-----:|---------:|-----:|
"""


def main() -> None:
    """Measure every machine and quantum, and write the report."""
    text = HEAD.format(cpus=os.cpu_count(), model=_host_model(), load=os.getloadavg()[0])
    for topology in MACHINES:
        boot = guests.linux("idle,1", topology)
        rate = _rate(topology, Clock(), boot)
        bare = Machine(name="bench", summary="", source="", memory_mib=MEMORY_MIB, topology=topology)
        cpu_s, wall_s = _job(bare, [])
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
    REPORT.write_text(text + _model() + _machines(), encoding="utf-8")


def _model() -> str:
    """Return the table of rates with and without the model of a machine."""
    box = machines.load(MODELLED)
    text = MODEL_HEAD.format(name=MODELLED)
    rates = []
    for clock, caches in ((Clock(), None), (box.clock, box.caches)):
        boot = guests.linux("idle,1", box.topology, clock, caches)
        spin = guests.linux(f"spin,{box.cpus},{box.cpus},{SPIN_INSNS // box.cpus}", box.topology, clock, caches)
        rates.append((spin.insns - boot.insns) / (spin.cpu_s - boot.cpu_s) / 1e6)
    text += f"| {rates[0]:.0f} | {rates[1]:.0f} | {rates[1] / rates[0]:.0%} |\n"
    return text


def _machines() -> str:
    """Return the table of what each shipped machine takes."""
    text = MACHINES_HEAD
    for box in sorted(map(machines.load, tomlfile.names(paths.MACHINES)), key=lambda box: (box.cpus, box.name)):
        cpu_s, wall_s = _job(box, [TINY])
        text += f"| {box.name} | {box.cpus} | {cpu_s:.1f} s | {wall_s:.1f} s |\n"
    return text


def _rate(topology: Topology, clock: Clock, boot: guests.Run) -> float:
    """Return instructions per second of host CPU time while all CPUs spin."""
    cpus = topology.cpus
    spin = guests.linux(f"spin,{cpus},{cpus},{SPIN_INSNS // cpus}", topology, clock)
    return (spin.insns - boot.insns) / (spin.cpu_s - boot.cpu_s)


def _job(machine: Machine, steps: list[Step]) -> tuple[float, float]:
    """Return host CPU time and wall time of a guest with a job, from power-on to power-off."""
    job = Job(seed=1, timeout_ns=JOB_TIMEOUT_NS, scheduler=None, steps=steps)
    before = os.times()
    results = vm.run(vm.Guest(machine=machine, kernel=kernels.find(guests.KERNEL), job=job))
    after = os.times()
    if results.error:
        raise SystemExit(f"{machine.name}: {results.error}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, results.wall_s


def _host_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
