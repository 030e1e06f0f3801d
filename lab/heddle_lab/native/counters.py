"""The kernel's counters around a step, under the names that the guest's agent gives them."""

import re
from pathlib import Path
from typing import Any

_RUN_DELAY = 7
"""field of a CPU's line in /proc/schedstat (version 15 and later), from 0 after its name"""


def read() -> dict[str, Any]:
    """Return all counters, summed over the CPUs."""
    match = re.search(r"^ctxt (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    return {
        "switches": int(match[1]) if match else 0,
        "run_delay_ns": _run_delay_ns(),
        "interrupts": _interrupts(Path("/proc/interrupts").read_text()),
    }


def since(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return how far the counters moved; interrupts without those that did not."""
    moved = {name: count - before["interrupts"].get(name, 0) for name, count in now["interrupts"].items()}
    return {
        "switches": now["switches"] - before["switches"],
        "run_delay_ns": now["run_delay_ns"] - before["run_delay_ns"],
        "interrupts": {name: count for name, count in moved.items() if count > 0},
    }


def _run_delay_ns() -> int:
    """Return how long tasks have waited for a CPU; 0 on kernels that do not count it."""
    try:
        lines = Path("/proc/schedstat").read_text().splitlines()
    except OSError:
        return 0
    rows = [line.split()[1:] for line in lines if re.match(r"cpu\d", line)]
    return sum(int(row[_RUN_DELAY]) for row in rows if len(row) > _RUN_DELAY)


def _interrupts(text: str) -> dict[str, int]:
    """Return interrupts by the kernel's own letters; `device` is the sum of numbered ones."""
    header, *lines = text.splitlines()
    cpus = len(header.split())
    counts: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.strip().partition(":")
        numbers = [int(word) for word in rest.split()[:cpus] if word.isdecimal()]
        key = "device" if name.isdecimal() else name
        counts[key] = counts.get(key, 0) + sum(numbers)
    return counts
