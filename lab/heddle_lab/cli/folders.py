"""Folders of runs, as commands read and publish them."""

from pathlib import Path

import click

from heddle_lab import comparison, files, html, identity, markdown, resultfile, table
from heddle_lab.cli import stdout
from heddle_lab.resultfile import CellResult


def read(folder: Path) -> list[CellResult]:
    """Read a folder's cells; one name is one thing in them."""
    return identity.one_run(resultfile.read(folder), str(folder))


def publish(folder: Path, cells: list[CellResult], about: resultfile.About) -> None:
    """Print the table of a run; write its report and its table.md."""
    rows = comparison.variants(cells, about.looks)
    console = stdout.console()
    if rows:
        table.show(rows, cells, console, about.looks)
    else:
        table.show_single(cells, console)
    page = folder / html.NAME
    files.write_text(page, html.render(about, cells, rows, html.pictures(folder, about, cells)))
    files.write_text(folder / markdown.NAME, markdown.render(rows, about))
    click.echo(f"{folder / resultfile.NAME}\n{page}")
