"""Measures the simulation rate and writes RATES.md: `cd lab && python -m clock.bench`."""

import os
import platform
from pathlib import Path

from clock import guests
from heddle_lab import kernels, vm
from heddle_lab.job import Job
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
SPIN_INSNS = 3_000_000_000
"""of all CPUs together, long enough for the boot before it to be a small part"""
MEMORY_MIB = 2048
JOB_TIMEOUT_NS = 60_000_000_000

HEAD = """# Simulation rate

Written by `cd lab && python -m clock.bench`, on {cpus} CPUs of {model}, load {load:.1f} before the start.

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


def main() -> None:
    """Measure every machine and quantum, and write the report."""
    text = HEAD.format(cpus=os.cpu_count(), model=_host_model(), load=os.getloadavg()[0])
    for topology in MACHINES:
        boot = guests.linux("idle,1", topology)
        rate = _rate(topology, Clock(), boot)
        cpu_s, wall_s = _agent(topology)
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
    REPORT.write_text(text, encoding="utf-8")


def _rate(topology: Topology, clock: Clock, boot: guests.Run) -> float:
    """Return instructions per second of host CPU time while all CPUs spin."""
    cpus = topology.cpus
    spin = guests.linux(f"spin,{cpus},{cpus},{SPIN_INSNS // cpus}", topology, clock)
    return (spin.insns - boot.insns) / (spin.cpu_s - boot.cpu_s)


def _agent(topology: Topology) -> tuple[float, float]:
    """Return host CPU time and wall time of a guest whose job is empty."""
    machine = Machine(name="bench", summary="", source="", memory_mib=MEMORY_MIB, topology=topology)
    job = Job(seed=1, timeout_ns=JOB_TIMEOUT_NS, scheduler=None, steps=[])
    before = os.times()
    results = vm.run(vm.Guest(machine=machine, kernel=kernels.find(guests.KERNEL), job=job))
    after = os.times()
    if results.error:
        raise SystemExit(f"the empty job failed: {results.error}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, results.wall_s


def _host_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
