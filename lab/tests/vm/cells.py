"""Cells of one program of the load generator."""

from heddle_lab import kernels, machine, variant
from heddle_lab.cell import Cell
from heddle_lab.workload import Metric, Workload


def cell_of(kernel: str, argv: list[str], sched: str = "eevdf", *, costs: bool = True) -> Cell:
    """Return a cell on smp-4 whose one step, `load`, runs in cgroup a/b.

    Args:
        kernel: its short name.
        argv: arguments of heddle-load.
        sched: as `--sched` takes it.
        costs: whether the hardware takes time beside instructions.
    """
    box = machine.load("smp-4")
    load = Workload(
        name="test",
        summary="",
        source="",
        steps=[{"name": "load", "argv": ["heddle-load", *argv], "cgroup": "a/b"}],
        metrics=[Metric(name="time", step="load", unit="ns", better="lower")],
    )
    return Cell(
        machine=box if costs else box.model_copy(update={"costs": machine.Costs()}),
        kernel=kernels.find(kernel),
        contestant=variant.of_scheduler(sched),
        workload=load,
        params={},
        seed=1,
    )
