"""`heddle validate`: measure what the laboratory claims about itself."""

from pathlib import Path

import click

from heddle_lab import files, invariance, paths, validation
from heddle_lab.cli import stdout
from heddle_lab.progress import Reporter
from heddle_lab.runner import Runner
from heddle_lab.store import Store


@click.command()
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Guests at a time; default: one per core.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="PAGE.md", default=validation.PAGE)
def validate(jobs: int | None, out: Path) -> int:
    """Measure what the laboratory claims about itself and write the page; exit status 1 if a check disagrees."""
    files.make_folder(out.parent)
    checks = validation.load()
    planned = validation.cells(checks)
    varied = checks.variations
    boots = [cell for seeds in planned.values() for sides in seeds for cell in sides]
    boots += [cell for *_, twins in varied for one in twins for cell in (one.cell, one.varied)]
    with Reporter(len(boots)) as reporter:
        outcome = Runner(Store(paths.cells()), jobs=jobs, report=reporter.show).run(boots)
    if outcome.interrupted:
        raise click.Abort
    findings = validation.judge(checks, planned, outcome)
    found = [(name, invariance.compare(twins, kind, outcome.results)) for name, kind, twins in varied]
    files.write_text(out, validation.page(findings, found))
    rows = [(one.check.kind, one.check.name, one.word.value.strip("*"), one.remark) for one in findings]
    stdout.listing(("kind", "check", "verdict", "why not"), rows)
    click.echo(out)
    return 1 if any(one.word is validation.Word.DISAGREE for one in findings) else 0
