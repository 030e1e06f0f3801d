"""The gate: two runs of the same cells, and whether the second lost."""

from heddle_lab import comparison, stats
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict

LOSS = 1
"""exit status: the second run is worse somewhere, or lacks cells"""
NO_VERDICT = 2
"""exit status: too few seeds to say, or an error"""
USAGE = 3
"""exit status: the command line is wrong"""


def rows(before: list[CellResult], after: list[CellResult]) -> list[Row]:
    """Compare two runs.

    Args:
        before: cells of the run to hold against.
        after: cells of the run under test.

    Raises:
        HeddleError: they share no cell.
    """
    found = comparison.runs(before, after)
    if not found:
        raise HeddleError(
            "the two runs share no cell: machine, kernel, scheduler, workload, parameters and seed differ"
        )
    return found


def missing(before: list[CellResult], after: list[CellResult]) -> str:
    """Return a line on the cells that the second run lacks, none if it has all: what crashed is no win."""
    lost = comparison.unpaired(before, after)
    if not lost:
        return ""
    first = lost[0]
    example = f"{first.workload} {first.machine} {first.kernel} {first.sched} seed {first.seed}"
    return f"{len(lost)} of {len(before)} cells of the first run are missing in the second, such as {example}"


def summary(found: list[Row]) -> str:
    """Return the last line of the comparison: how many rows are significantly worse."""
    lost = losses(found)
    return f"{len(lost)} of {len(found)} rows are worse" if lost else f"none of {len(found)} rows is worse"


def undecided(found: list[Row]) -> str:
    """Return a line on the rows that differ and have too few seeds for a verdict, none if there are none.

    Rows whose values are the same in each pair lost nothing, however few they are.
    """
    differing = (row for row in found if row.baseline_values != row.candidate_values)
    rows = [row for row in differing if row.verdict is Verdict.TOO_FEW_SEEDS]
    enough = f"measure with --seeds {stats.FEWEST} or more"
    return f"{len(rows)} of {len(found)} rows have too few seeds for a verdict: {enough}" if rows else ""


def losses(found: list[Row]) -> list[Row]:
    """Return the rows that are significantly worse."""
    return [row for row in found if row.verdict is Verdict.WORSE]
