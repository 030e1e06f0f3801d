"""Back ends: what carries out a cell's job. `clock` is the laboratory's guest, `host` this machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Experiment
from heddle_lab.progress import Reporter
from heddle_lab.runner import Outcome

NAMES = ("clock", "host", "kvm")

_KVM = Path("/dev/kvm")


class Backend(Protocol):
    """Runs cells and returns their records."""

    def cells(self, wanted: Experiment, origins: Mapping[str, str]) -> list[Cell]:
        """Return the cells of an experiment.

        Args:
            wanted: the experiment.
            origins: where its values were written, for errors.

        Raises:
            HeddleError: the experiment cannot be measured so.
        """

    def run(self, cells: list[Cell], how: Mapping[str, Any], reporter: Reporter) -> Outcome:
        """Measure cells, and return their results.

        Args:
            cells: what to measure.
            how: `jobs`, `dask_address`, `fresh`, `cold`, as on the command line.
            reporter: is told how far the run is.

        Raises:
            HeddleError: it cannot be done so.
        """


def kvm() -> HeddleError:
    """Return why a cell cannot run under KVM here."""
    if not _KVM.exists():
        return HeddleError("no kvm back end: this machine has no /dev/kvm; use --backend host or clock")
    if not os.access(_KVM, os.R_OK | os.W_OK):
        return HeddleError("no kvm back end: /dev/kvm is not yours to open; use --backend host or clock")
    return HeddleError("no kvm back end: the guest's agent needs the laboratory's QEMU; use --backend host or clock")
