"""`heddle pages`: say in pages which tables are of another version."""

import os

import click

from heddle_lab import pages


@click.command(name="pages")
@click.option("--check", is_flag=True, help="Write nothing; exit status 1 if a page is not as it should be.")
def note_versions(check: bool) -> int:
    """Say in each page which of its tables were measured by another version of the scheduler or the laboratory."""
    wrong = [page for page in pages.all_pages() if (pages.is_wrong(page) if check else pages.update(page))]
    for page in wrong:
        where = os.path.relpath(page)
        click.echo(f"{where}: its note on tables of other versions is wrong: run `make pages`" if check else where)
    return 1 if check and wrong else 0
