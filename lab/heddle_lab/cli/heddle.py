"""The group of all commands, and what becomes of their errors."""

import sys
import traceback

import click

from heddle_lab import compare, criterion
from heddle_lab.cli.bisect import find_commit, verdict
from heddle_lab.cli.compare import compare_runs
from heddle_lab.cli.doctor import examine
from heddle_lab.cli.fidelity import compare_with_host
from heddle_lab.cli.listings import experiments, list_kernels, workloads
from heddle_lab.cli.machines import calibrate, machines, write_machine
from heddle_lab.cli.manual import write_manual
from heddle_lab.cli.pages import note_versions
from heddle_lab.cli.profile import show_profile
from heddle_lab.cli.record import record
from heddle_lab.cli.report import report
from heddle_lab.cli.run import run
from heddle_lab.cli.shell import shell
from heddle_lab.cli.timeline import timeline
from heddle_lab.cli.validate import validate
from heddle_lab.errors import HeddleError

_COMMANDS = [
    run,
    report,
    timeline,
    show_profile,
    record,
    validate,
    compare_with_host,
    compare_runs,
    verdict,
    find_commit,
    machines,
    write_machine,
    calibrate,
    workloads,
    experiments,
    list_kernels,
    shell,
    note_versions,
    examine,
    write_manual,
]


@click.group(commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Compare CPU schedulers: real kernels, modelled machines, virtual time."""


def main() -> None:
    """Run the command line; a fault is one line on stderr and exit status 1 (`compare`, `verdict` have their own)."""
    named = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    fault = {compare_runs.name: compare.NO_VERDICT, verdict.name: criterion.ABORT}.get(named, 1)
    try:
        _run(fault)
    except Exception:
        if fault == 1:
            raise
        # Python's own status is that of a loss, and of a bad commit.
        traceback.print_exc()
        sys.exit(fault)


def _run(fault: int) -> None:
    """Run the command line.

    Args:
        fault: exit status of an error that no caller expected, such as a full disk.
    """
    try:
        status = cli.main(prog_name="heddle", standalone_mode=False)
    except click.Abort:
        _die("interrupted", 130)
    except click.ClickException as error:
        usage = {compare_runs: compare.USAGE, verdict: criterion.ABORT}
        command = error.ctx.command if isinstance(error, click.UsageError) and error.ctx else None
        _die(error.format_message(), usage.get(command, 1) if isinstance(command, click.Command) else 1)
    except HeddleError as error:
        if "--debug" in sys.argv:
            raise
        _die(str(error), error.status)
    except OSError as error:
        # What no caller expected to fail: a full or unreadable disk, a reader that left.
        if "--debug" in sys.argv:
            raise
        _die(": ".join(filter(None, [error.filename, error.strerror or str(error)])), fault)
    sys.exit(status if isinstance(status, int) else 0)


def _die(message: str, status: int = 1) -> None:
    click.echo(f"heddle: {message}", err=True)
    sys.exit(status)
