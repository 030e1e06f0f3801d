"""The gate: two runs of the same cells, and whether the second lost."""

import math
from typing import Any
from xml.etree import ElementTree

from heddle_lab import comparison, fidelity, stats
from heddle_lab.comparison import Row
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict

LOSS = 1
"""exit status: a primary metric of the second run is worse, or cells are missing"""
NO_VERDICT = 2
"""exit status: the intervals do not exclude a loss that matters, or an error"""
USAGE = 3
"""exit status: the command line is wrong"""


def rows(before: list[CellResult], after: list[CellResult], smallest: float = stats.SMALLEST_EFFECT) -> list[Row]:
    """Compare two runs.

    Args:
        before: cells of the run to hold against.
        after: cells of the run under test.
        smallest: the smallest loss that matters, a fraction.

    Raises:
        HeddleError: they share no cell.
    """
    found = comparison.runs(before, after, smallest)
    if not found:
        raise HeddleError(
            "the two runs share no cell: workload or seeds differ, or one has several machines, kernels, variants or "
            "parameters of which the other has none"
        )
    return found


def missing(before: list[CellResult], after: list[CellResult]) -> str:
    """Return a line on the cells that the second run lacks, none if it has all: what crashed is no win."""
    lost = comparison.unpaired(before, after)
    if not lost:
        return ""
    first = lost[0]
    example = f"{first.workload} {first.machine} {first.kernel} {first.variant} seed {first.seed}"
    return f"{len(lost)} of {len(before)} cells of the first run are missing in the second, such as {example}"


def losses(found: list[Row]) -> list[Row]:
    """Return the primary rows that are worse."""
    return [row for row in found if row.primary and row.verdict is Verdict.WORSE]


def undecided(found: list[Row]) -> list[Row]:
    """Return the primary rows that are not worse and may yet hide a loss that matters.

    What has the same values in each pair lost nothing, however few pairs there are.
    """
    unknown = [row for row in found if row.primary and not row.equal and row.verdict is Verdict.UNKNOWN]
    return [row for row in unknown if not row.may_be_decided or not stats.excludes_loss(row.result, row.better)]


def status(found: list[Row], lost: str) -> int:
    """Return the exit status: 0 no loss, `LOSS`, `NO_VERDICT`.

    Args:
        found: the rows.
        lost: what `missing` says.
    """
    if lost or losses(found):
        return LOSS
    return NO_VERDICT if undecided(found) else 0


def summary(found: list[Row]) -> str:
    """Return the last line of the comparison: how many primary rows are worse, and how many of the other metrics."""
    lost, whole = len(losses(found)), sum(row.primary for row in found)
    others = [row.verdict for row in found if not row.primary]
    beside = f"; {others.count(Verdict.WORSE)} of {len(others)} other rows" if others else ""
    return f"{lost or 'none'} of {whole} primary rows {'are' if lost > 1 else 'is'} worse{beside}"


def remedy(found: list[Row]) -> str:
    """Return a line on the rows that may hide a loss, and how many seeds would tell; empty if there are none."""
    open_rows = undecided(found)
    if unlike := next((row for row in open_rows if row.mismatch), None):
        return f"{unlike.point}: {fidelity.WORD}: {unlike.mismatch}"
    if not open_rows:
        return ""
    most = max((row.pairs_needed() or stats.FEWEST for row in open_rows), default=stats.FEWEST)
    first = open_rows[0]
    what = f"{len(open_rows)} of {sum(row.primary for row in found)} primary rows may hide a loss"
    example = f"{first.point} {first.metric} of {first.variants[0]} ({first.interval})"
    return f"{what}, such as {example}: measure with --seeds {most} or more"


def document(found: list[Row], lost: str, differs: list[str]) -> dict[str, Any]:
    """Return the comparison as plain data; ends of intervals that one pair does not have are null.

    Args:
        found: the rows.
        lost: what `missing` says.
        differs: a line for each thing that differs between the runs.
    """
    counts = {word.value: sum(row.primary and row.verdict is word for row in found) for word in Verdict}
    return {
        "status": status(found, lost),
        "summary": summary(found),
        "differs": differs,
        "missing": lost,
        "undecided": remedy(found),
        "primary": counts,
        "rows": [_plain(row) for row in found],
    }


def _plain(row: Row) -> dict[str, Any]:
    result = row.result
    ends = {"low": result.low, "high": result.high, "deviation": result.deviation}
    return {
        "machine": row.machine,
        "kernel": row.kernel,
        "workload": row.workload,
        "params": row.params,
        "variant": row.variants[0],
        "metric": row.metric,
        "unit": row.unit,
        "better": row.better,
        "primary": row.primary,
        "pairs": result.pairs,
        "relative": result.relative,
        "effect": result.effect,
        **{name: value if math.isfinite(value) else None for name, value in ends.items()},
        "p": result.p,
        "corrected_p": row.corrected_p,
        "verdict": row.verdict.value,
        "fragile": row.fragile,
        "mismatch": row.mismatch,
        "seeds": row.seeds,
        "before": row.baseline_values,
        "after": row.candidate_values,
    }


def junit(found: list[Row], lost: str) -> str:
    """Return the comparison as JUnit's XML: a test for each primary row, and one for the cells.

    A loss is a failure, and so are missing cells; a row that may hide a loss is skipped.
    """
    primaries = [row for row in found if row.primary]
    worse, hidden = losses(found), undecided(found)
    numbers = {
        "name": "heddle compare",
        "tests": str(len(primaries) + 1),
        "failures": str(len(worse) + bool(lost)),
        "skipped": str(len(hidden)),
    }
    suite = ElementTree.Element("testsuite", numbers)
    cells = ElementTree.SubElement(suite, "testcase", {"classname": "heddle", "name": "cells"})
    if lost:
        ElementTree.SubElement(cells, "failure", {"message": lost})
    for row in primaries:
        name = {"classname": f"{row.machine}.{row.kernel}", "name": f"{row.variants[0]}: {row.point} {row.metric}"}
        case = ElementTree.SubElement(suite, "testcase", name)
        said = {"message": f"{row.verdict.value}: {row.effect} ({row.interval}), {row.result.pairs} pairs"}
        if row in worse:
            ElementTree.SubElement(case, "failure", said)
        elif row in hidden:
            ElementTree.SubElement(case, "skipped", said)
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'
