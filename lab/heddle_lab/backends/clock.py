"""The back end `clock`: guests on modelled machines, in deterministic virtual time."""

from collections.abc import Mapping
from typing import Any

from heddle_lab import paths
from heddle_lab.cell import Cell
from heddle_lab.experiment import Experiment
from heddle_lab.progress import Reporter
from heddle_lab.runner import Outcome, Runner
from heddle_lab.store import Store


class Clock:
    """The laboratory's guests."""

    def cells(self, wanted: Experiment, origins: Mapping[str, str]) -> list[Cell]:
        """Return the cells of an experiment; see `Backend`."""
        return wanted.cells(origins)

    def run(self, cells: list[Cell], how: Mapping[str, Any], reporter: Reporter) -> Outcome:
        """Measure the cells that the store lacks; see `Backend`."""
        runner = Runner(
            Store(paths.cells()),
            jobs=how["jobs"],
            dask_address=how["dask_address"],
            fresh=how["fresh"],
            cold=how["cold"],
            announce=reporter.announce,
            report=reporter.show,
        )
        return runner.run(cells)
