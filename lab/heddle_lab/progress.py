"""How far a run is, on stderr: stdout carries results alone."""

import sys
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from heddle_lab import runner, units


class Reporter:
    """A bar on a terminal; one line per cell elsewhere."""

    def __init__(self, total: int) -> None:
        """Prepare for `total` cells."""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> "Reporter":
        """Show the bar."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()

    def announce(self, plan: runner.Plan) -> None:
        """Say what is to be measured and how long that may take."""
        if not plan.missing:
            every = f"all {plan.stored} cells are" if plan.stored > 1 else "the cell is"
            click.echo(f"{every} stored: nothing to measure", err=True)
            return
        cells = f"{units.counted(plan.missing, 'cell')} to measure, {plan.stored} stored; {plan.jobs} at a time"
        length = "no earlier cell tells how long" if plan.expected_s is None else f"about {_duration(plan.expected_s)}"
        click.echo(f"{cells}: {length}", err=True)

    def show(self, now: runner.Progress) -> None:
        """Show that a cell ended."""
        left = f", about {_duration(now.remaining_s)} left" if now.remaining_s is not None else ""
        what = f"{now.cell}{' FAILED' if now.failed else ''}{left}"
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=now.done, description=what)
        else:
            click.echo(f"[{now.done}/{now.total}] {what}", err=True)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
