"""Numbers as people read them."""

import math

_TIME = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
SHARE = "of CPU time"
"""unit of a part of the CPU time"""

_TINY = 1e-6
"""below it, zeros would be all that is read"""

_HUGE = 1e3
"""from a thousandfold on, a fraction's digits say nothing"""

_SI = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def is_share(unit: str) -> bool:
    """Tell whether a metric is a part of a whole, 0..1, shown in percent: `of CPU time`, `of its share`."""
    return unit.startswith("of ")


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit, four significant digits, such as `12.35 ms` or `1.2 k requests/s`."""
    if is_share(unit):
        return f"{digits(value * 100)} %"
    if unit == "ns":
        name, factor = next(((n, f) for n, f in _TIME if abs(value) >= f), _TIME[-1])
        return f"{digits(value / factor)} {name}"
    prefix, factor = next(((p, f) for p, f in _SI if abs(value) >= f), _SI[-1])
    gap = " " if prefix and unit and not unit.startswith("/") else ""
    return f"{digits(value / factor)} {prefix}{gap}{unit}".rstrip()


def digits(value: float) -> str:
    """Return a number with four significant digits, whole if it is; one near zero with its exponent."""
    if abs(value) < _TINY or not math.isfinite(value):
        return f"{value:.4g}"
    places = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(fraction: float) -> str:
    """Return a change with its sign, such as `+3.1 %`; a minus is a minus. A huge one has an exponent: `+6.3e+24 %`."""
    text = f"{fraction * 100:+.1f}" if abs(fraction) < _HUGE else f"{fraction * 100:+.2g}"
    return f"{'±0.0' if text in ('+0.0', '-0.0') else text.replace('-', '−')} %"


def part(fraction: float) -> str:
    """Return a part of something without a sign, such as `2 %`."""
    return f"{digits(fraction * 100)} %"


def difference(value: float, unit: str) -> str:
    """Return a difference of two values with its sign; parts of a whole differ by percentage points."""
    if not is_share(unit):
        return f"{'+' if value > 0 else ''}{quantity(value, unit)}".replace("-", "−")
    text = f"{value * 100:+.2f}"
    return f"{'±0.00' if text in ('+0.00', '-0.00') else text.replace('-', '−')} points"


def counted(number: int, noun: str) -> str:
    """Return a number of things, such as `1 cell` or `2 cells`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
