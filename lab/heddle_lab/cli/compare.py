"""`heddle compare`: say whether the second of two runs lost."""

import json
from pathlib import Path

import click

from heddle_lab import compare, comparison, differences, files, identity, stats, table
from heddle_lab.cli import folders, options, stdout
from heddle_lab.errors import HeddleError


@click.command(name="compare")
@click.argument("before", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("after", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--smallest",
    type=options.Percent(),
    default=stats.SMALLEST_EFFECT,
    metavar="X%",
    help=f"The smallest loss that matters; default: {stats.SMALLEST_EFFECT:.0%}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.xml",
    help="Also write JUnit's XML: a test for each primary metric.",
)
def compare_runs(before: Path, after: Path, smallest: float, as_json: bool, junit: Path | None) -> int:
    """Compare two runs over whatever differs between them: did the second lose?

    Exit status 0: no loss. 1: a primary metric is worse somewhere, or cells are missing. 2: no verdict, for want of
    seeds or because of an error. 3: wrong usage.
    """
    try:
        runs = folders.read(before), folders.read(after)
        identity.two_runs(*runs, (str(before), str(after)))
        rows = compare.rows(*runs, smallest)
        missing = compare.missing(*runs)
        differs = differences.lines(pair for paired in comparison.partners(*runs) for pair in paired)
        if junit:
            files.write_text(junit, compare.junit(rows, missing))
    except HeddleError as error:
        raise HeddleError(str(error), compare.NO_VERDICT) from error
    if as_json:
        click.echo(json.dumps(compare.document(rows, missing, differs), indent=1, ensure_ascii=False))
    else:
        table.show(rows, [*runs[0], *runs[1]], stdout.console())
        for line in differs:
            click.echo(f"differs: {line}")
        click.echo(compare.summary(rows))
    for line in filter(None, (missing, compare.remedy(rows))):
        click.echo(f"heddle: {line}", err=True)
    return compare.status(rows, missing)
