"""Machines for tests that need long virtual times: those of busy CPUs cost instructions."""

from pathlib import Path

SLOW = """
name = "slow"
summary = "CPUs of {speed} % of the usual speed"
source = "virtual seconds of busy CPUs cost instructions"
memory_mib = {memory_mib}
topology = {{ {topology} }}
clock = {{ speed = {speed} }}
"""


def slow(folder: Path, topology: str, speed: int = 10, memory_mib: int = 1024) -> str:
    """Write a machine of CPUs of a speed in percent, whose virtual seconds are cheap; return its path."""
    machine = folder / "slow.toml"
    machine.write_text(SLOW.format(topology=topology, speed=speed, memory_mib=memory_mib))
    return str(machine)
