"""From results.json to rows, table and page; and the command line around them."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from heddle_lab import cli, comparison, html, markdown, means, resultfile, stats, table, units
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult
from heddle_lab.stats import Verdict

METRICS = {"elapsed_ns": {"unit": "ns", "better": "lower"}, "throughput": {"unit": "requests/s", "better": "higher"}}
PROVENANCE = {
    "cell": "0123456789abcdef",
    "versions": {"commit": "c0ffee", "numpy": "2", "scipy": "1"},
    "variant": {},
    "kernel": "7.3",
    "kernel_option": "7.3",
    "kernel_release": "7.3.4-test",
    "machine_source": "synthetic",
    "workload_source": "a <b>bold</b> program",
    "metrics": METRICS,
    "flags": [],
    "inputs": {
        "machine": {"clock": {"quantum_ns": 10000, "speed": 100, "smt": 61}, "topology": {"cores": 4}, "caches": None},
        "kernel": "aa",
        "command_line": "quiet",
        "cpu": "max",
        "qemu": "bb",
        "image": ["cc"],
        "scheduler": {"argv": [], "sha256": None},
    },
}


ABOUT = resultfile.About(title="demo", command="make it")

TOPOLOGY = [{"cpu": cpu, "core": cpu // 2, "llc": 0, "node": 0, "siblings": []} for cpu in range(4)]


def cells(factor: float = 0.8, schedulers: tuple[str, ...] = ("eevdf", "scx_heddle")) -> list[CellResult]:
    """Return a run in which every scheduler after the first takes `factor` of the time."""
    return [
        CellResult(
            machine="smp-4",
            kernel="7.3",
            variant=sched,
            sched=sched,
            workload="hackbench",
            params={"load": load, "loops": 100},
            seed=seed,
            metrics={
                "elapsed_ns": round(1e6 * load * (1 + seed / 50) * (1 if number == 0 else factor + seed / 1000)),
                "throughput": 1000.0 + seed,
                "virtual_ns": 10**9,
                "wall_s": seed * 1.7,
            },
            counters={"switches": 7},
            provenance=PROVENANCE | {"option": ["--sched", sched]},
        )
        for seed in range(1, 7)
        for load in (0.75, 1.25)
        for number, sched in enumerate(schedulers)
    ]


class Outline(HTMLParser):
    """Collects what the tests ask about, and insists on balanced elements."""

    VOID = frozenset({"meta", "circle", "line", "rect", "path", "ellipse", "br", "col", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(run: list[CellResult]) -> tuple[str, Outline]:
    about = resultfile.About(
        title="demo: a <title>",
        command="bin/heddle run demo",
        topologies={"smp-4": TOPOLOGY},
        pages=["../README.md"],
    )
    drawn = html.pictures(Path("/nonexistent"), about, run)
    source = html.render(about, run, comparison.variants(run), drawn)
    outline = Outline()
    outline.feed(source)
    assert outline.open == []
    return source, outline


def test_rows_pair_by_seed_and_judge() -> None:
    rows = comparison.variants(cells())
    assert [(row.point, row.metric) for row in rows if row.primary] == [
        ("hackbench load=0.75", "elapsed_ns"),
        ("hackbench load=1.25", "elapsed_ns"),
    ]
    assert [(row.point, row.metric) for row in rows] == [
        ("hackbench load=0.75", "elapsed_ns"),
        ("hackbench load=0.75", "throughput"),
        ("hackbench load=1.25", "elapsed_ns"),
        ("hackbench load=1.25", "throughput"),
    ]
    assert [row.verdict for row in rows] == [Verdict.BETTER, Verdict.SAME] * 2
    assert rows[0].seeds == [1, 2, 3, 4, 5, 6]
    assert rows[0].result.effect == pytest.approx(-0.197, abs=1e-3)


def test_seeds_without_a_partner_are_left_out() -> None:
    run = [cell for cell in cells() if not (cell.variant == "eevdf" and cell.seed == 2)]
    assert {tuple(row.seeds) for row in comparison.variants(run)} == {(1, 3, 4, 5, 6)}


def test_the_first_scheduler_is_the_baseline_of_all_others() -> None:
    rows = comparison.variants(cells(schedulers=("a", "b", "c")))
    assert {(row.baseline, row.candidate) for row in rows} == {("a", "b"), ("a", "c")}


def with_latencies(factors: dict[float, float], workloads: tuple[str, ...] = ("hackbench",)) -> list[CellResult]:
    """Return a run in which a point's times are divided by a factor, by load, and its p99 is multiplied by it."""
    run = []
    for cell in cells():
        times = 1 if cell.variant == "eevdf" else factors[float(cell.params["load"])]
        noise = 1 + cell.seed / 1000
        metrics = {"elapsed_ns": 1e6 / times * noise, "throughput": 7.0, "latency_ns.p99": 100.0 * times}
        about = cell.provenance | {"metrics": {**METRICS, "latency_ns.p99": {"unit": "ns", "better": "lower"}}}
        run += [
            cell.model_copy(update={"metrics": metrics, "provenance": about, "workload": name}) for name in workloads
        ]
    return run


def test_means_are_geometric_and_count_a_short_time_as_speed() -> None:
    """Times fall to a half at one point and to an eighth at the other, p99 rises to double and to eight times."""
    run = with_latencies({0.75: 2, 1.25: 8})
    [line] = means.lines(comparison.variants(run))
    assert line.startswith("scx_heddle against eevdf on smp-4, Linux 7.3: throughput +100.0 % (")
    assert "p50 not measured, p99 +300.0 % (" in line
    half = means.of(comparison.variants([cell for cell in run if cell.params["load"] == 0.75]))["throughput"]
    assert half is not None
    assert (half.rows, half.workloads, half.extreme) == (2, 1, "")
    assert half.effect == pytest.approx(2**0.5 - 1)


def test_a_workload_has_one_vote_however_often_it_is_swept() -> None:
    """One workload at two points, another at one: 2 x and 8 x, which are 4 x together, against 1 x."""
    run = with_latencies({0.75: 2, 1.25: 8})
    run += [
        cell.model_copy(update={"workload": "tbench"})
        for cell in with_latencies({0.75: 1, 1.25: 1})
        if cell.params["load"] == 0.75
    ]
    mean = means.of(comparison.variants(run))["p99"]
    assert mean is not None
    assert (mean.effect, mean.workloads, mean.rows) == (pytest.approx(1), 2, 3)
    assert (mean.extreme, mean.without) == ("hackbench", pytest.approx(0, abs=1e-9)), "of two, the first"


def test_means_have_the_interval_of_their_seeds() -> None:
    run = [cell for cell in cells() if cell.params["load"] == 0.75]
    rows = [row for row in comparison.variants(run) if row.metric == "elapsed_ns"]
    mean = means.mean(rows)
    assert mean is not None
    [low, high] = [1 / (1 + end) - 1 for end in (rows[0].result.high, rows[0].result.low)]
    assert (mean.low, mean.high) == pytest.approx((low, high))
    assert low < mean.effect < high
    one = means.mean(comparison.variants([cell for cell in run if cell.seed == 1]))
    assert "(no interval; 1 workload)" in str(one)


def test_coverage_of_a_mean_is_that_of_its_seeds() -> None:
    """Three workloads whose seeds go together: what one seed does to all is not taken for three opinions."""
    random, covered, trials = np.random.default_rng(1), 0, 200
    [row] = [row for row in comparison.variants(cells()) if row.metric == "elapsed_ns"][:1]
    for _ in range(trials):
        shared = random.normal(size=6)
        rows = []
        for name in "abc":
            logs = 0.05 * (shared + random.normal(size=6))
            result = stats.paired([1e9] * 6, (1e9 * np.exp(logs)).tolist(), resolution=1)
            values = {"baseline_values": [1e9] * 6, "candidate_values": (1e9 * np.exp(logs)).tolist()}
            rows.append(row.model_copy(update=values | {"workload": name, "result": result}))
        mean = means.mean(rows)
        assert mean is not None
        covered += mean.low <= 0 <= mean.high
    assert covered / trials >= 0.95 - 3.5 * (0.95 * 0.05 / trials) ** 0.5


def test_table_shows_no_wall_time_and_is_the_same_twice() -> None:
    texts = []
    for wall in (1.0, 4321.0):
        run = [cell.model_copy(update={"metrics": cell.metrics | {"wall_s": wall}}) for cell in cells()]
        console = Console(width=140, file=io.StringIO(), record=True)
        table.show(comparison.variants(run), run, console)
        texts.append(console.export_text())
    assert texts[0] == texts[1]
    assert re.search(r"hackbench load=0.75 +elapsed_ns ↓ +802.5 µs +644.8 µs +−19.7 % .* better", texts[0])
    assert "4321" not in texts[0]


def test_page_is_one_offline_file() -> None:
    source, outline = page(cells())
    assert "http://" not in source
    assert "https://" not in source
    assert "url(" not in source
    targets = [value for name, value in outline.attributes if name in ("src", "href")]
    assert set(targets) == {"table.md", "../README.md"}
    assert "script" not in outline.count
    assert "link" not in outline.count


def test_page_draws_every_row_and_escapes_what_it_shows() -> None:
    source, outline = page(cells())
    text = "".join(outline.text)
    assert outline.count["circle"] == 4 * 6
    assert "a <b>bold</b> program" in text
    assert "<b>bold" not in source
    assert "bin/heddle run --machine smp-4 --kernel 7.3 --workload hackbench --param load=0.75" in text
    positions = [float(value or "nan") for name, value in outline.attributes if name in ("cx", "x1", "x2")]
    assert all(0 <= position <= 320 for position in positions)


def test_page_of_a_single_scheduler() -> None:
    _, outline = page(cells(schedulers=("eevdf",)))
    assert "nothing to compare" in "".join(outline.text)


def test_file_reads_back(tmp_path: Path) -> None:
    resultfile.write(tmp_path / "new" / "folder", cells())
    assert resultfile.read(tmp_path / "new" / "folder") == cells()
    assert json.loads((tmp_path / "new/folder/results.json").read_text())["cells"][0]["metrics"]["elapsed_ns"] == 765000


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[{}]", "results of an older version: run its command again, which measures only what the cache lacks"),
        ('{"format": 3}', "format: Input should be 2"),
        ('{"format": 2, "shared": [], "cells": [{"provenance": {"rest": {}}}]}', "machine: Field required"),
        ('{"format": 2, "shared": [], "cells": [{"provenance": {"$": 0}}]}', "damaged, or not a file that"),
        ('{"format": 2, "shared": [], "cells": [{}]}', "damaged, or not a file that `heddle run` wrote: 'provenance'"),
        ("nonsense", "damaged, or not a file that `heddle run` wrote: Expecting value"),
        (None, "No such file"),
    ],
)
def test_wrong_file(tmp_path: Path, content: str | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(HeddleError, match=complaint):
        resultfile.read(tmp_path)


@pytest.fixture
def two_runs(tmp_path: Path) -> tuple[Path, Path]:
    resultfile.write(tmp_path / "before", cells(0.8))
    resultfile.write(tmp_path / "after", cells(0.9))
    return tmp_path / "before", tmp_path / "after"


def test_report_command(two_runs: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(cli.cli, ["report", str(two_runs[0])], standalone_mode=False)
    assert done.exception is None
    assert "better" in done.output
    assert (two_runs[0] / "report.html").is_file()


def test_gate_fails_on_a_loss_only(two_runs: tuple[Path, Path]) -> None:
    before, after = map(str, two_runs)
    runner = CliRunner()
    assert runner.invoke(cli.cli, ["compare", before, before], standalone_mode=False).return_value == 0
    assert runner.invoke(cli.cli, ["compare", after, before], standalone_mode=False).return_value == 0
    lost = runner.invoke(cli.cli, ["compare", before, after], standalone_mode=False)
    assert lost.return_value == 1
    assert "scx_heddle after against scx_heddle before on smp-4" in lost.output
    assert "2 of 4 primary rows are worse; 0 of 4 other rows" in lost.output


def test_gate_fails_if_cells_are_gone(two_runs: tuple[Path, Path]) -> None:
    before, after = two_runs
    run = resultfile.read(before)
    resultfile.write(after, [cell for cell in run if (cell.variant, cell.seed) != ("scx_heddle", 2)])
    gone = CliRunner().invoke(cli.cli, ["compare", str(before), str(after)], standalone_mode=False)
    assert gone.return_value == 1
    assert "none of 4 primary rows is worse" in gone.output
    assert "heddle: 2 of 24 cells of the first run are missing in the second" in gone.output
    assert "hackbench smp-4 7.3 scx_heddle seed 2" in gone.output
    more = CliRunner().invoke(cli.cli, ["compare", str(after), str(before)], standalone_mode=False)
    assert more.return_value == 0


def gate(tmp_path: Path, factors: list[float], *options: str) -> tuple[int, str]:
    """Compare two runs whose times differ by a factor for each seed; return exit status and output."""
    after = []
    for cell in cells():
        factor = factors[cell.seed - 1] if cell.variant == "scx_heddle" else 1
        after.append(
            cell.model_copy(update={"metrics": cell.metrics | {"elapsed_ns": cell.metrics["elapsed_ns"] * factor}})
        )
    for name, run in {"before": cells(), "after": after}.items():
        resultfile.write(tmp_path / name, run)
    words = ["compare", *(str(tmp_path / name) for name in ("before", "after")), *options]
    done = CliRunner().invoke(cli.cli, words, standalone_mode=False)
    assert done.exception is None
    return done.return_value, done.output


@pytest.mark.parametrize(
    ("factors", "status"),
    [
        ([1, 1, 1, 1, 1, 1], 0),
        ([1.001, 0.999, 1.002, 0.998, 1.003, 1.0], 0),
        ([0.9, 0.7, 0.8, 0.95, 0.6, 0.9], 0),
        ([1.05, 0.97, 1.02, 1.01, 0.96, 1.04], 2),
        ([1.05, 1.06, 1.055, 1.05, 1.06, 1.052], 1),
        ([1.015, 1.014, 1.016, 1.015, 1.014, 1.016], 0),
    ],
)
def test_the_gate_passes_only_what_excludes_a_loss(tmp_path: Path, factors: list[float], status: int) -> None:
    assert gate(tmp_path, factors)[0] == status


def test_what_the_gate_tolerates_can_be_set(tmp_path: Path) -> None:
    worse = [1.05, 1.06, 1.055, 1.05, 1.06, 1.052]
    assert gate(tmp_path, worse, "--smallest", "10%")[0] == 0
    assert gate(tmp_path, worse, "--smallest", "1")[0] == 1


@pytest.mark.parametrize("value", ["0", "100%", "much", "-2%", "nan"])
def test_a_tolerance_that_is_no_percentage_is_wrong_usage(
    two_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setattr("sys.argv", ["heddle", "compare", *map(str, two_runs), f"--smallest={value}"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    assert "is no percentage above 0 and below 100; write it such as 2%" in capsys.readouterr().err


def test_the_gate_speaks_json(tmp_path: Path) -> None:
    status, output = gate(tmp_path, [1.05, 1.06, 1.055, 1.05, 1.06, 1.052], "--json")
    said = json.loads(output)
    assert said["status"] == status == 1
    assert said["primary"] == {"better": 0, "worse": 2, "same": 2, "unknown": 0}
    [row, *_] = [row for row in said["rows"] if row["primary"] and row["verdict"] == "worse"]
    assert (row["variant"], row["metric"], row["pairs"]) == ("scx_heddle", "elapsed_ns", 6)
    assert 0.04 < row["low"] < row["effect"] < row["high"] < 0.07
    assert len(row["before"]) == len(row["seeds"]) == 6


def test_json_has_no_infinity(tmp_path: Path) -> None:
    resultfile.write(tmp_path, [cell for cell in cells() if cell.seed == 1])
    done = CliRunner().invoke(cli.cli, ["compare", str(tmp_path), str(tmp_path), "--json"], standalone_mode=False)
    rows = json.loads(done.output, parse_constant=lambda name: pytest.fail(name))["rows"]
    assert {(row["high"], row["deviation"], row["verdict"]) for row in rows} == {(None, None, "unknown")}


def test_the_gate_writes_junit(tmp_path: Path) -> None:
    file = tmp_path / "gate.xml"
    gate(tmp_path, [1.05, 1.06, 1.055, 1.05, 1.06, 1.052], "--junit", str(file))
    suite = ElementTree.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 - written here
    assert (suite.tag, suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("testsuite", "5", "2", "0")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == [f"scx_heddle: hackbench load={load} elapsed_ns" for load in (0.75, 1.25)]
    gate(tmp_path, [1.05, 0.97, 1.02, 1.01, 0.96, 1.04], "--junit", str(file))
    suite = ElementTree.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 - written here
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "2")
    [message, *_] = [skipped.get("message") for skipped in suite.iter("skipped")]
    assert message is not None
    assert re.fullmatch(r"unknown: [+−][0-9.]+ % \([+−][0-9.]+ % … [+−][0-9.]+ %\), 6 pairs", message)


def test_a_junit_file_that_cannot_be_written_is_an_error(two_runs: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(cli.cli, ["compare", *map(str, two_runs), "--junit", f"{__file__}/x.xml"])
    assert __file__ in str(done.exception)
    assert getattr(done.exception, "status", 0) == 2


def test_gate_says_nothing_of_few_seeds_that_differ(tmp_path: Path) -> None:
    few = [[cell for cell in cells(factor) if cell.seed == 1] for factor in (0.8, 1.6)]
    folders = [resultfile.write(tmp_path / name, run) for name, run in zip("ab", few, strict=True)]
    done = CliRunner().invoke(cli.cli, ["compare", *map(str, folders)], standalone_mode=False)
    assert done.return_value == 2
    assert "2 of 4 primary rows may hide a loss, such as hackbench load=0.75 elapsed_ns of scx_heddle" in done.output
    assert "measure with --seeds 6 or more" in done.output


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["{before}", "{before}"], 0, ""),
        (["{before}", "{slower}"], 1, ""),
        (["{before}", "/nonexistent"], 2, "/nonexistent: No such file or directory"),
        (["{before}", "{elsewhere}"], 2, "the two runs share no cell"),
        (["{before}"], 3, "Missing argument 'DIR'"),
        (["{before}", "{before}", "--no-such"], 3, "--no-such"),
    ],
)
def test_the_gate_tells_losses_from_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    complaint: str,
) -> None:
    elsewhere = [cell.model_copy(update={"seed": cell.seed + 9}) for cell in cells()]
    runs = {"before": cells(), "slower": slower(), "elsewhere": elsewhere}
    for name, run in runs.items():
        resultfile.write(tmp_path / name, run)
    words = [word.format(**{name: tmp_path / name for name in runs}) for word in arguments]
    monkeypatch.setattr("sys.argv", ["heddle", "compare", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == status
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == (1 if complaint else 0)


def slower() -> list[CellResult]:
    """Return a run that takes half as much time again, and a little more on each seed."""
    return [
        cell.model_copy(
            update={"metrics": cell.metrics | {"elapsed_ns": cell.metrics["elapsed_ns"] * (1.5 + cell.seed / 1000)}}
        )
        for cell in cells()
    ]


def without(metric: str, cell: CellResult) -> CellResult:
    return cell.model_copy(update={"metrics": {name: of for name, of in cell.metrics.items() if name != metric}})


def test_what_some_cells_lack_is_compared_where_it_is() -> None:
    """As percentiles of too few samples: of one point none, of the other some seeds of one scheduler."""
    run = [
        without("throughput", cell) if cell.params["load"] == 1.25 or (cell.variant == "b" and cell.seed > 3) else cell
        for cell in cells(schedulers=("a", "b", "c"))
    ]
    rows = comparison.variants(run)
    known = {(row.candidate, row.params["load"]): row.seeds for row in rows if row.metric == "throughput"}
    assert known == {("b", 0.75): [1, 2, 3], ("c", 0.75): [1, 2, 3, 4, 5, 6]}
    assert len([row for row in rows if row.metric == "elapsed_ns"]) == 4
    text = markdown.render(rows, ABOUT)
    assert "b against a on smp-4, Linux 7.3, other metrics, 3 paired seeds:" in text
    assert "b against a on smp-4, Linux 7.3, 6 paired seeds:" in text
    assert "3 to 6 paired seeds<" in page(run)[0]
    output = io.StringIO()
    table.show(rows, run, Console(file=output, width=200))
    assert "other metrics, 3 paired seeds" in output.getvalue()
    single = io.StringIO()
    table.show_single(
        [without("throughput", cell) for cell in run if cell.variant == "a"], Console(file=single, width=200)
    )
    assert "throughput" not in single.getvalue()
    lost = [without("throughput", cell) for cell in run]
    assert {row.metric for row in comparison.runs(run, lost)} == {"elapsed_ns"}


def test_one_seed_is_one_pair() -> None:
    run = [cell for cell in cells() if cell.seed == 1]
    assert "Linux 7.3, 1 paired seed:" in markdown.render(comparison.variants(run), ABOUT)
    assert "1 paired seed<" in page(run)[0]
    assert '<span class="word">unknown</span>' in page(run)[0]
    assert {row.verdict for row in comparison.variants(run)} == {Verdict.UNKNOWN}


def test_a_piped_table_is_not_cut(tmp_path: Path) -> None:
    long = "a-scheduler-with-a-very-long-name-" * 4
    resultfile.write(tmp_path, cells(schedulers=("eevdf", long, f"another-{long}")))
    done = CliRunner().invoke(cli.cli, ["report", str(tmp_path)], standalone_mode=False)
    rows = [line.split() for line in done.output.splitlines() if "elapsed_ns ↓" in line]
    assert [row[-1] for row in rows] == ["better"] * 4
    titles = [line for line in done.output.splitlines() if "against eevdf on smp-4, Linux 7.3, 6 paired" in line]
    assert [title.split()[0] for title in titles] == [long, f"another-{long}"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run"], "name an experiment ("),
        (["run", "nosuch"], "unknown experiment 'nosuch'"),
        (["run", "--workload", "nosuch"], "unknown workload 'nosuch'; known: "),
        (["run", "--workload", "hackbench", "--machine", "nosuch"], "unknown machine 'nosuch'; known: "),
        (["run", "--workload", "hackbench", "--kernel", "5.4"], "unknown kernel '5.4'; known: 7.3"),
        (["run", "--workload", "hackbench", "--kernel", "7.2"], "7.3; `python3 -m setup kernel 7.2` adds one, or"),
        (["run", "--workload", "hackbench", "--kernel", "new"], "7.3; `python3 -m setup kernel VERSION` adds one, or"),
        (["run", "--workload", "hackbench", "--sched", "cfs"], "unknown scheduler 'cfs'; known: eevdf, scx_heddle"),
        (["run", "--workload", "hackbench", "--sched", "eevdf", "--sched", "eevdf"], "'eevdf' is named twice"),
        (["run", "--workload", "hackbench", "--variant", "x:y=1"], "no key 'y'; known: sched, kernel, cmdline, sysctl"),
        (["run", "--workload", "hackbench", "--param", "speed=1"], "--param speed: no workload here has"),
        (["run", "--workload", "hackbench", "--param", "load"], "--param load: write KEY=VALUE"),
        (["run", "--workload", "hackbench", "--sched", "eevdf", "--param", "load=x"], "parameter 'load' is a number"),
        (["run", "demo.toml"], ""),
        (["run", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["nosuch"], "No such command 'nosuch'"),
        (["record", "/nonexistent"], "/nonexistent: No such file or directory"),
        (["record", __file__], "no sched_switch events: record sched_switch and sched_waking"),
        (["timeline", "/nonexistent", "--sched", "a", "--workload", "b"], "/nonexistent: No such file or directory"),
        (["report", "/nonexistent"], "/nonexistent: No such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_status_1(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    if arguments == ["run", "demo.toml"]:
        (cache / "demo.toml").write_text("name = 3")
        arguments, complaint = ["run", str(cache / "demo.toml")], "demo.toml: name: Input should be a valid string"
    monkeypatch.setattr("sys.argv", ["heddle", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("heddle: ")
    assert err.count("\n") == 1
    assert complaint in err


@pytest.mark.parametrize(
    ("command", "word"),
    [("machines", "smp-16-2llc"), ("workloads", "load=1.25"), ("experiments", "demo"), ("kernels", "7.3.0-test")],
)
def test_listings(cache: Path, command: str, word: str) -> None:
    assert cache
    done = CliRunner().invoke(cli.cli, [command], standalone_mode=False)
    assert done.exception is None
    assert word in done.output
    assert [line for line in done.output.splitlines() if line != line.rstrip()] == []


def test_a_table_in_a_pipe_has_no_blanks_at_the_ends_of_its_lines(two_runs: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(cli.cli, ["report", str(two_runs[0])], standalone_mode=False)
    assert done.exception is None
    assert "hackbench" in done.output
    assert [line for line in done.output.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "ns", "0 ns"),
        (999, "ns", "999 ns"),
        (1_234_567, "ns", "1.235 ms"),
        (61e9, "ns", "61 s"),
        (1003, "requests/s", "1.003 k requests/s"),
        (12.5, "/s", "12.5 /s"),
        (0.0123, "", "0.0123"),
        (0.0000123, "", "0.0000123"),
        (6.54e-18, "of CPU time", "6.54e-16 %"),
    ],
)
def test_quantities_read_well(value: float, unit: str, text: str) -> None:
    assert units.quantity(value, unit) == text


def test_a_difference_that_rounds_to_nothing_has_no_sign() -> None:
    shown = [units.difference(value, "of CPU time") for value in (-1e-9, 0.0, 1e-9, -0.0312)]
    assert shown == ["±0.00 points"] * 3 + ["−3.12 points"]


def test_a_change_has_a_sign_and_few_digits() -> None:
    shown = [units.percent(value) for value in (0.0312, -0.5, -1e-9, 89.272, 6.278e22)]
    assert shown == ["+3.1 %", "−50.0 %", "±0.0 %", "+8927.2 %", "+6.3e+24 %"]


def test_one_thing_is_not_several() -> None:
    assert [units.counted(number, "cell") for number in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]


def test_percentages_have_a_sign() -> None:
    assert [units.percent(x) for x in (0.031, -0.5, 0.0, -1e-9)] == ["+3.1 %", "−50.0 %", "±0.0 %", "±0.0 %"]


def test_the_most_telling_rows_come_first() -> None:
    """Large effects that are sure, then small ones, then the same, then unknown ones however large."""
    noisy = [1.9, 0.7, 1.4, 0.8, 1.2, 1.1]
    factors = {"much": [0.5] * 6, "little": [1.1] * 6, "none": [1.0] * 6, "noise": noisy}
    run = []
    for cell in cells():
        for name, times in factors.items():
            value = 1e6 * (1 + cell.seed / 1000) * (times[cell.seed - 1] if cell.variant == "scx_heddle" else 1)
            moved = {"workload": name, "params": {}, "metrics": {"elapsed_ns": value, "virtual_ns": 10**9}}
            run += [cell.model_copy(update=moved)] if cell.params["load"] == 0.75 else []
    rows = comparison.variants(run)
    found = [(row.workload, row.verdict) for row in comparison.primaries(rows)]
    words = [Verdict.BETTER, Verdict.WORSE, Verdict.SAME, Verdict.UNKNOWN]
    assert found == list(zip(factors, words, strict=True))
    text = markdown.render(rows, ABOUT)
    places = [text.index(f"| {name} |") for name in factors]
    assert places == sorted(places)
    source, _ = page(run)
    assert [source.index(f"<h2>{name}</h2>") for name in factors] == sorted(
        source.index(f"<h2>{name}</h2>") for name in factors
    )
    assert "1 primary row unknown: a difference of 2 % takes" in text


def test_a_page_has_a_set_of_cards_for_each_contestant() -> None:
    source, outline = page(cells(schedulers=("a", "b", "c")))
    anchors = [value for name, value in outline.attributes if name == "id"]
    assert anchors == ["c1", "c1-1", "c1-2", "c2", "c2-1", "c2-2"]
    assert [value for name, value in outline.attributes if name == "href" and value and value[0] == "#"] == [
        "#c1",
        "#c2",
    ]
    assert source.index("b against a on smp-4") < source.index('id="c1-1"') < source.index('id="c2"')


def test_the_verdict_on_one_contestant_does_not_depend_on_others() -> None:
    alone = comparison.variants(cells(schedulers=("a", "b")))
    beside = comparison.variants(cells(schedulers=("a", "b", "c", "d")))
    assert alone == [row for row in beside if row.candidate == "b"]


def test_a_summary_always_shows_throughput_p50_and_p99() -> None:
    [line] = means.lines(comparison.variants(cells()))
    assert re.search(r": throughput [+−].* %.*, p50 not measured, p99 not measured$", line)


def test_a_result_without_a_primary_metric_takes_its_first() -> None:
    """As results do that were written before workloads declared one."""
    assert {row.metric for row in comparison.variants(cells()) if row.primary} == {"elapsed_ns"}
    metrics = METRICS | {"throughput": METRICS["throughput"] | {"primary": True}}
    declared = [cell.model_copy(update={"provenance": cell.provenance | {"metrics": metrics}}) for cell in cells()]
    assert {row.metric for row in comparison.variants(declared) if row.primary} == {"throughput"}


def test_looks_are_said_and_counted() -> None:
    run = cells()
    about = ABOUT.model_copy(update={"looks": [6, 12]})
    rows = comparison.variants(run, about.looks)
    assert rows[0].result.high - rows[0].result.low > (one := comparison.variants(run)[0].result).high - one.low
    note = "Looked at after 6 and 12 pairs"
    assert note in markdown.render(rows, about)
    assert note in html.render(about, run, rows, html.pictures(Path("/nonexistent"), about, run))
    output = io.StringIO()
    table.show(rows, run, Console(file=output, width=200), about.looks)
    assert note in output.getvalue()


def test_several_schedulers_share_a_table_first() -> None:
    text = markdown.render(comparison.variants(cells(schedulers=("a", "b", "c"))), ABOUT)
    first = text.split("paired seeds")[0]
    assert "| workload | metric | a | b | c |" in first
    assert re.search(r"\| hackbench load=0.75 \| elapsed_ns ↓ \| 802.5 µs \| 644\.\d µs \| 644\.\d µs \|", first)
    assert "without the lowest" not in markdown.render(comparison.variants(cells()), ABOUT)


def test_table_goes_into_a_page(tmp_path: Path, two_runs: tuple[Path, Path]) -> None:
    page = tmp_path / "README.md"
    name = two_runs[0].name
    page.write_text(f"above\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\nbelow\n", encoding="utf-8")
    for _ in range(2):
        done = CliRunner().invoke(cli.cli, ["report", str(two_runs[0]), "--into", str(page)])
        assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    assert text.startswith("above\n")
    assert text.endswith(f"<!-- {name}:end -->\nbelow\n")
    assert "old" not in text
    assert text.count("| hackbench load=0.75 | elapsed_ns ↓ |") == 1
    assert f"[report]({name}/report.html)" in text
    assert "[report](report.html)" in (two_runs[0] / "table.md").read_text(encoding="utf-8")
    assert '<a href="../README.md">README.md</a>' in (two_runs[0] / "report.html").read_text(encoding="utf-8")


def test_the_means_go_into_a_page(tmp_path: Path, two_runs: tuple[Path, Path]) -> None:
    page, name = tmp_path / "defaults.md", two_runs[0].name
    page.write_text(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n", encoding="utf-8")
    done = CliRunner().invoke(cli.cli, ["report", str(two_runs[0]), "--into", str(page), "--means"])
    assert done.exit_code == 0, done.output
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if "| `scx_heddle` |" in line]
    assert len(rows) == 1
    assert re.search(r"\| [+−][0-9.]+ % \([+−][0-9.]+ % … [+−][0-9.]+ %\) \|", rows[0])
    assert rows[0].endswith("| 2 | 0 | 0 | 0 |")


def test_another_scheduler_is_the_baseline(tmp_path: Path, two_runs: tuple[Path, Path]) -> None:
    folder, page = two_runs[0], tmp_path / "defaults.md"
    name = f"{folder.name} of scx_heddle"
    page.write_text(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    words = ["report", str(folder), "--into", str(page), "--means", "--baseline"]
    done = CliRunner().invoke(cli.cli, [*words, "scx_heddle"])
    assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    assert "| of scx_heddle |" in text
    assert "| `eevdf` |" in text
    assert {path: path.read_bytes() for path in before} == before
    wrong = CliRunner().invoke(cli.cli, [*words, "cfs"])
    assert "no variant cfs was measured; give one of eevdf, scx_heddle" in str(wrong.exception or wrong.output)


def test_a_removed_flag_names_its_replacement(two_runs: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(cli.cli, ["report", str(two_runs[0]), "--level-with", "eevdf"])
    assert "--level-with was removed: use --means --baseline NAME" in str(done.exception or done.output)


def test_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(HeddleError, match="has no lines"):
        markdown.insert(page, "demo", "text")
    assert page.read_text(encoding="utf-8") == "nothing here"
