"""Cache lines that moved between CPUs, from the counters of the virtual clock."""

from collections.abc import Mapping
from typing import Any

DISTANCES = ("core", "llc", "node")
"""from another core of the LLC, another LLC of the node, another node"""


def transfers_per_switch(clock: Mapping[str, Any]) -> dict[str, float]:
    """Return how many lines of the kernel CPUs fetched from each distance, by task switch.

    Args:
        clock: the clock's counters; those of a machine without lines, or without a switch, give nothing.
    """
    cpus = clock.get("cpus", [])
    switches = sum(cpu["switches"] for cpu in cpus)
    moved = [sum(cpu["transfers"][1 + place] for cpu in cpus) for place in range(len(DISTANCES))]
    if not switches or not any(moved):
        return {}
    return {f"transfers_per_switch.{name}": count / switches for name, count in zip(DISTANCES, moved, strict=True)}
