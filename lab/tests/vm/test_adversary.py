"""Tasks that try to get more than their share: what is left to a hog beside them, under scx_heddle and under EEVDF."""

from pathlib import Path

from heddle_lab.job import SchedulerStop, Step
from tests.conftest import Boot, Record
from tests.vm.machines import slow
from tests.vm.test_core import HEDDLE, MS, cpu_ns, spin, wait

FOR_MS = 1000

FAIR = {"dodge": ("1", 1 / 2), "yield": ("1", 1 / 2), "hop": ("1,2", 2 / 3), "fork": ("1", 1 / 2)}
"""trick -> the CPUs, with a hog on each, and the part of its CPU that each hog is to have"""

TOLERANCE = 0.03
"""of the time of a CPU, against what is fair and against EEVDF"""


def contest(scheduler: str, trick: str) -> list[Step]:
    cpus, _ = FAIR[trick]
    name = f"{trick} under {scheduler}"
    argv = ["heddle-load", "adversary", "--trick", trick, "--cpus", cpus, "--for-ms", str(FOR_MS + 100)]
    threads = str(len(cpus.split(",")))
    return [
        Step(name=f"adversary: {name}", argv=argv, background=True, uid=1000),
        spin(f"hogs: {name}", "--threads", threads, "--cpus", cpus, "--pin", for_ms=FOR_MS),
        wait(f"adversary: {name}"),
    ]


def test_no_trick_pays(boot: Boot, tmp_path: Path, record_property: Record) -> None:
    machine = slow(tmp_path, "cores = 4", speed=25)
    steps = [step for trick in FAIR for step in contest("scx_heddle", trick)]
    steps.append(Step(name="stop", action=SchedulerStop()))
    steps += [step for trick in FAIR for step in contest("eevdf", trick)]
    results = boot(steps, machine=machine, sched=HEDDLE).check()

    def left(scheduler: str, trick: str) -> float:
        return min(cpu_ns(results, f"hogs: {trick} under {scheduler}")) / (FOR_MS * MS)

    shares = {trick: (left("scx_heddle", trick), left("eevdf", trick)) for trick in FAIR}
    record_property(f"part left to a hog beside each trick on {boot.kernel}, scx_heddle and eevdf", shares)
    losses = {
        trick: (heddle, eevdf)
        for trick, (heddle, eevdf) in shares.items()
        if heddle < min(FAIR[trick][1], eevdf) - TOLERANCE
    }
    assert not losses
