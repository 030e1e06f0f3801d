"""What results say of a recorded load: how its replay compares with the trace, and no verdict if it does not match."""

import io

from rich.console import Console

from heddle_lab import compare, comparison, detect, html, markdown, means, resultfile, table
from heddle_lab.detect import Search
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict
from tests.test_report import cells

FAR = "utilisation 82.8 % -> 23.2 % (−72.0 %; at most 11.2 %)"
NEAR = "utilisation +1.2 %, switches −3.0 % (on smp-2, Linux 7.3)"
ABOUT = resultfile.About(title="t", command="bin/heddle run")


def recorded(mismatch: str, factor: float = 0.8) -> list[CellResult]:
    """Return results of a recorded load."""
    about = {"summary": NEAR, "mismatch": mismatch}
    return [
        cell.model_copy(update={"provenance": cell.provenance | {"fidelity": about}}) for cell in cells(factor=factor)
    ]


def texts(run: list[CellResult]) -> list[str]:
    """Return what the terminal, the table and the page say."""
    rows = comparison.variants(run)
    out = io.StringIO()
    table.show(rows, run, Console(file=out, width=1000))
    return [out.getvalue(), markdown.render(rows, ABOUT), html.render(ABOUT, run, rows, html.Pictures({}, []))]


def test_a_replay_that_does_not_match_gives_no_verdict() -> None:
    assert Verdict.BETTER in {row.verdict for row in comparison.variants(recorded(""))}
    rows = comparison.variants(recorded(FAR))
    assert {row.verdict for row in rows} == {Verdict.UNKNOWN}
    assert {row.word for row in rows} == {"unknown: the replay does not match"}
    assert comparison.wanting(rows) == ""
    assert all(mean is None for mean in means.of(rows).values())


def test_every_report_says_how_the_replay_compares() -> None:
    for text in texts(recorded("")):
        assert f"hackbench: its replay against its trace: {NEAR}" in text
        assert "does not match" not in text
    for text in texts(recorded(FAR)):
        assert "unknown: the replay does not match" in text
        assert FAR in text.replace("-&gt;", "->")
    for text in texts(cells()):
        assert "replay" not in text


def test_more_seeds_are_not_measured_for_it() -> None:
    search = Search(effect=0.0001, looks=[6, 96])
    assert detect.unfinished(comparison.variants(recorded(FAR, factor=0.99)), search) == []


def test_the_gate_says_so() -> None:
    rows = compare.rows(cells(), recorded(FAR, factor=1.5))
    assert compare.status(rows, "") == compare.NO_VERDICT
    assert "the replay does not match: utilisation 82.8 %" in compare.remedy(rows)
    same = compare.rows(recorded(FAR), recorded(FAR))
    assert compare.status(same, "") == 0


def test_a_single_scheduler_is_shown_with_it() -> None:
    out = io.StringIO()
    table.show_single(recorded(FAR), Console(file=out, width=1000))
    assert FAR in out.getvalue()
