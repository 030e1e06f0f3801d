"""Group-sequential comparisons: looks at the pairs while seeds are added, and the error probability that each spends.

Each look has its own share of `stats.ALPHA`; the shares sum up to it. A row's p-value at the look at which it ends,
times ALPHA / share, is then a valid p-value by Bonferroni's inequality, whatever made it end there. So it holds for
Student's t with any number of pairs, and Holm's method may follow. Boundaries that use how the looks depend on each
other are known for normal statistics alone, and six pairs are too few for these.
"""

from collections.abc import Sequence

from heddle_lab import power, stats
from heddle_lab.stats import Paired

EXPONENT = 1.0
"""of the spending function. Pairs that rows need differ a hundredfold: most effects have to be found early. 3 is close
to O'Brien and Fleming's, which leaves nearly all for the last look."""


def looks(most: int, first: int = stats.FEWEST) -> list[int]:
    """Return the numbers of pairs at which to look: twice as many each time, at last all.

    Args:
        most: pairs that may be measured; with no more than `first` there is one look.
        first: pairs at the first look.
    """
    found = [first]
    while found[-1] < most:
        # A last step that adds little is no look of its own.
        found.append(2 * found[-1] if 3 * found[-1] <= most else most)
    return [min(most, pairs) for pairs in found]


def spent(planned: Sequence[int], exponent: float = EXPONENT) -> list[float]:
    """Return the error probability that each look may spend: alpha t^exponent up to it, less what was spent before.

    K. Kim and D. L. DeMets, "Design and analysis of group sequential tests based on the type I error spending rate
    function", Biometrika 74 (1987); t is the part of all pairs.

    Args:
        planned: numbers of pairs at the looks, ascending, decided on before the first.
        exponent: the higher, the more is left for late looks.
    """
    whole = [stats.ALPHA * (pairs / planned[-1]) ** exponent for pairs in planned]
    return [now - before for now, before in zip(whole, [0.0, *whole], strict=False)]


def share(planned: Sequence[int], pairs: int) -> float:
    """Return the error probability of the look at which a row with some pairs ended; all of it without a plan."""
    after = [part for look, part in zip(planned, spent(planned), strict=True) if look >= pairs] if planned else []
    return after[0] if after else stats.ALPHA


def note(planned: Sequence[int]) -> str:
    """Return a line on looks that were planned, for below a table; empty if there were none."""
    if len(planned) < 2:
        return ""
    numbers = ", ".join(str(pairs) for pairs in planned[:-1])
    return (
        f"Looked at after {numbers} and {planned[-1]} pairs, as far as a point was not finished before: "
        "p-values and intervals allow for all of these looks."
    )


def enough(result: Paired, effect: float, planned: Sequence[int], rows: int) -> bool:
    """Return whether a row would show an effect by now, so that more seeds are not worth their time.

    Args:
        result: what the pairs so far say of the row.
        effect: what is to be found; see `power.pairs_needed`.
        planned: numbers of pairs at the looks.
        rows: primaries in the table.
    """
    alpha = share(planned, result.pairs)
    needed = power.pairs_needed(result, effect, alpha=alpha, rows=rows)
    return needed is not None and needed <= result.pairs
