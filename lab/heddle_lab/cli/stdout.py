"""Tables on stdout."""

import io
import re
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDE = 10_000
"""columns; more than any row has"""


def console() -> Console:
    """Return stdout; in a pipe or a file the tables are as wide as they need, without blanks at the end of a line."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE, file=_Trimmed())


def listing(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table on stdout."""
    grid = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        grid.add_row(*map(escape, row))
    console().print(grid)


class _Trimmed(io.StringIO):
    """Stdout for whole lines, as a console prints them."""

    def write(self, text: str) -> int:
        """Write text, less the blanks before each of its line ends."""
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        """Flush stdout."""
        sys.stdout.flush()
