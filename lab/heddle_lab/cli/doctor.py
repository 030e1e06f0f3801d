"""`heddle doctor`: say what this machine lacks."""

import click

from heddle_lab import doctor


@click.command(name="doctor")
def examine() -> int:
    """Say whether this machine can load scx_heddle and run guests; exit status 1 if anything but root is missing."""
    found = list(doctor.laboratory())
    lines, loads = doctor.scheduler()
    click.echo("to measure schedulers in guests (bin/heddle run):")
    for finding in found:
        click.echo(f"  {finding}")
    click.echo("to load scx_heddle on this machine (sudo bin/scx_heddle):")
    for line in lines:
        click.echo(f"  {line}")
    return 0 if loads and not any(finding.missing for finding in found) else 1
