"""Types and texts of options that several commands have."""

import math
from typing import Any

import click

from heddle_lab import hostfiles

FILE_HELP = f"A file or folder of this host for the guest, as GUEST; default: {hostfiles.PROGRAMS}/NAME."


class Milliseconds(click.FloatRange):
    """A time that is a number of nanoseconds: `nan`, which lies in every range, and `inf` are none."""

    name = "number of milliseconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, if it is finite."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number * 1e6):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


class Percent(click.ParamType[float]):
    """A part of something, written as `2%` or `2`; a fraction in the program."""

    name = "percentage"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the fraction."""
        try:
            number = value if isinstance(value, float) else float(str(value).removesuffix("%")) / 100
        except ValueError:
            number = math.nan
        if not 0 < number < 1:
            self.fail(f"{value!r} is no percentage above 0 and below 100; write it such as 2%.", param, ctx)
        return number
