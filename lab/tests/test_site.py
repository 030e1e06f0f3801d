"""The documentation: the site builds, its links lead somewhere, and the options and counters that it names exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from heddle_lab import paths
from heddle_lab.cli import cli
from heddle_lab.errors import HeddleError
from heddle_lab.site import PROGRAM, on_page_markdown, on_post_build

DOCS = paths.REPOSITORY / "docs"
PAGES = sorted([*(DOCS / "guide").glob("*.md"), *(DOCS / "mechanisms").glob("*.md")])
DASHBOARD = paths.REPOSITORY / "scheduler/packaging/grafana/heddle.json"

OTHER_PROGRAMS = {"--now", "--threads", "--nice", "--cpus", "--test", "--nocapture"}
"""of systemctl, heddle-load and cargo"""


def said(option: str) -> str:
    return subprocess.run([PROGRAM, option], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def counters() -> set[str]:
    return {line.split()[0] for line in said("--help-stats").splitlines()}


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Options of scx_heddle and of heddle with its commands."""
    assert isinstance(cli, click.Group)
    commands = [cli, *cli.commands.values()]
    known = {name for command in commands for param in command.params for name in param.opts}
    return known | set(re.findall(r"(?<!\S)--[a-z-]+", said("--help")))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(paths.LAB)}
    done = subprocess.run(argv, cwd=paths.REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "guide/counters.html").read_text()
    assert "<code>wakeq_offered</code>" in page


def test_a_link_that_leads_nowhere_fails() -> None:
    class Page:
        file = type("File", (), {"abs_src_path": str(DOCS / "guide" / "x.md")})

    assert on_page_markdown("[a](../../Makefile)", Page()) == "a (`Makefile`)"
    assert on_page_markdown("[a](b.md)", Page()) == "[a](b.md)"
    with pytest.raises(HeddleError, match="nothing-there"):
        on_page_markdown("[a](../../nothing-there)", Page())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_options_that_exist(page: Path, options: set[str]) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert named - OTHER_PROGRAMS <= options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_counters_that_exist(page: Path, counters: set[str]) -> None:
    """Each list after `Counters.`, and each first column in the guide to them."""
    text = page.read_text()
    lists = re.findall(r"\*\*Counters\.\*\*(.*)", text, re.DOTALL)
    if page.stem == "counters":
        lists += re.findall(r"^\| (`[a-z_`, and]+)[^|]*\|", text, re.MULTILINE)
    named = {name for one in lists for name in re.findall(r"`([a-z_]+)`", one)}
    assert named <= counters
    assert named or page.parent.name == "guide"


def test_every_counter_is_explained_by_a_mechanism(counters: set[str]) -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert {name for name in counters if f"`{name}`" not in text} == set()


def test_the_dashboard_shows_metrics_that_exist(counters: set[str]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    named = {name for text in shown for name in re.findall(r"\bheddle_(\w+)_total\b", text)}
    assert named
    assert named <= counters
    assert all("heddle_" in text for text in shown)


def test_reports_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    """There a page of Markdown is one of HTML; what is outside is named, not linked."""
    report = tmp_path / "results" / "suite" / "report.html"
    report.parent.mkdir(parents=True)
    (report.parent / "table.html").touch()
    report.write_text('<a href="table.md">table</a> <a href="../../../README.md">README.md</a> <a href="#c1">x</a>')
    on_post_build({"site_dir": str(tmp_path)})
    assert report.read_text() == '<a href="table.html">table</a> README.md <a href="#c1">x</a>'
