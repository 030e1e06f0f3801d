"""`heddle manual`: write the manual pages."""

from pathlib import Path

import click

from heddle_lab import manual


@click.command(name="manual")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.pass_context
def write_manual(context: click.Context, folder: Path) -> None:
    """Write heddle(1), a page for each command, and shell completions to DIR."""
    for file in manual.write(context.find_root().command, folder):
        click.echo(file)
