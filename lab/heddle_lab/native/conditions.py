"""What else went on on this machine while a job ran: its numbers are worth less if much did."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from heddle_lab.results import Results
from heddle_lab.tomlfile import Model

_STEAL, _FIELDS = 7, 8
"""fields of the first line of /proc/stat, after its name"""

_CPUFREQ = "/sys/devices/system/cpu"


class Conditions(Model):
    """At the end of a job, or over its length."""

    load_average: float
    """of the last minute, when the job began: this job is not in it"""
    stolen: float
    """part of the CPU time that the hypervisor gave to others, 0..1; 0 on bare metal"""
    mhz: float | None
    """mean frequency of the CPUs when the job ended; none: the kernel does not tell"""
    governor: str | None
    """of the frequency; none: the kernel does not choose it"""


EVENT = "conditions"
"""of the record"""

_PREFIX = "host"
"""of the metrics' names"""


def metrics(results: Results) -> dict[str, int | float]:
    """Return the numbers of a job that ran on this machine, as metrics that nothing is judged by; else none."""
    return {
        f"{_PREFIX}.{name}": value
        for record in results.of(EVENT)
        for name, value in record.items()
        if name in Conditions.model_fields and isinstance(value, int | float)
    }


def summary(cells: Sequence[dict[str, int | float]]) -> str:
    """Return a line on what else went on while cells ran on this machine; empty if none did.

    Args:
        cells: the metrics of each.
    """
    found = [cell for cell in cells if f"{_PREFIX}.load_average" in cell]
    if not found:
        return ""
    loads, stolen = ([cell[f"{_PREFIX}.{name}"] for cell in found] for name in ("load_average", "stolen"))
    speeds = [cell[f"{_PREFIX}.mhz"] for cell in found if f"{_PREFIX}.mhz" in cell]
    mhz = f", {min(speeds):.0f} to {max(speeds):.0f} MHz" if speeds else ""
    load = f"Load average before each cell {min(loads)} to {max(loads)}"
    return (
        "Measured by wall time (--backend host): seeds are repetitions, and no two runs are the same. "
        f"{load}, at most {max(stolen):.1%} of CPU time stolen{mhz}."
    )


class Watch:
    """Begins with the job."""

    def __init__(self) -> None:
        """Read what there is before."""
        self._load = os.getloadavg()[0]
        self._before = _times()

    def end(self) -> Conditions:
        """Return what there was."""
        moved = [now - before for now, before in zip(_times(), self._before, strict=True)]
        governor = Path(f"{_CPUFREQ}/cpu0/cpufreq/scaling_governor")
        return Conditions(
            load_average=round(self._load, 2),
            stolen=round(moved[_STEAL] / max(1, sum(moved)), 4),
            mhz=_mhz(),
            governor=governor.read_text().strip() if governor.is_file() else None,
        )


def _times() -> list[int]:
    """Return ticks that all CPUs spent in each state (proc_stat(5))."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return [int(word) for word in words[:_FIELDS]]


def _mhz() -> float | None:
    files = [*Path(_CPUFREQ).glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    if files:
        return round(statistics.fmean(int(file.read_text()) for file in files) / 1000, 1)
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("cpu MHz")]
    return round(statistics.fmean(float(line.partition(":")[2]) for line in lines), 1) if lines else None
