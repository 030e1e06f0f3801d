"""Machines without costs of the hardware, for tests of long virtual times, or of instructions alone."""

from pathlib import Path

SLOW = """
name = "slow"
summary = "CPUs of {speed} % of the usual speed"
source = "virtual seconds of busy CPUs cost instructions"
memory_mib = {memory_mib}
topology = {{ {topology} }}
clock = {{ speed = {speed}, smt = {smt} }}
{caches}"""


CACHES = "caches = { footprint_kib = 64, misses = 4, core_ns = 10, llc_ns = 80 }\n"
"""of several LLCs in a node: as ryzen-7950x has them"""


def plain(folder: Path, cores: int) -> str:
    """Write a machine on which an instruction takes a nanosecond and nothing else takes time; return its path."""
    return slow(folder, f"cores = {cores}", speed=100)


def slow(folder: Path, topology: str, speed: int = 10, memory_mib: int = 1024, smt: int = 100, caches: str = "") -> str:
    """Write a machine of CPUs of a speed in percent, whose virtual seconds are cheap; return its path."""
    machine = folder / "slow.toml"
    text = SLOW.format(topology=topology, speed=speed, memory_mib=memory_mib, smt=smt, caches=caches)
    machine.write_text(text)
    return str(machine)
