"""`heddle report`: print a run's table again and write its pages anew."""

import os
from collections.abc import Callable
from pathlib import Path

import click

from heddle_lab import comparison, markdown, pages, paths, resultfile, table
from heddle_lab.cli import folders, stdout
from heddle_lab.errors import HeddleError


def _gone(instead: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """Return what refuses a removed option and names what to use instead."""

    def refuse(_: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise HeddleError(f"{option.opts[0]} was removed: use {instead}")

    return refuse


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--into",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PAGE.md",
    help="Also put the table into a page, between its lines <!-- DIR:begin --> and <!-- DIR:end -->.",
)
@click.option("--means", is_flag=True, help="Into the page: a line for each variant, not the table.")
@click.option(
    "--baseline",
    metavar="NAME",
    help="Compare with this variant: print, and put between <!-- DIR of NAME:begin --> and its end, but leave DIR.",
)
@click.option("--level-with", hidden=True, callback=_gone("--means --baseline NAME, which counts the words"))
def report(folder: Path, into: Path | None, means: bool, baseline: str | None, **_: object) -> None:
    """Print the table of DIR/results.json again and write DIR/report.html and DIR/table.md anew."""
    cells, about = folders.read(folder), resultfile.about(folder)
    name = folder.resolve().name
    if baseline:
        cells, name = comparison.against(cells, baseline), f"{name} of {baseline}"
        table.show(comparison.variants(cells, about.looks), cells, stdout.console(), about.looks)
    elif into:
        about = _linked(folder, about, into)
    if into:
        where = os.path.relpath(folder, into.parent)
        if means:
            text = markdown.summary(cells, about, where)
        else:
            published = None if folder.resolve().is_relative_to(paths.OUT) else where
            text = markdown.render(comparison.variants(cells, about.looks), about, published)
            if published is None:
                text = f"{pages.mark(pages.of_cells(cells))}\n{text}"
        markdown.insert(into, name, text)
    if not baseline:
        folders.publish(folder, cells, about)


def _linked(folder: Path, about: resultfile.About, page: Path) -> resultfile.About:
    """Return what is said of a run, with a page that shows its table, and write it."""
    shown = os.path.relpath(page, folder)
    linked = about.model_copy(update={"pages": sorted({*about.pages, shown})})
    if linked != about:
        resultfile.write_about(folder, linked)
    return linked
