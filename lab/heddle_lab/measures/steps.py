"""Step functions of time: how many of some intervals hold."""

import numpy as np

from heddle_lab.measures.events import Ints

Steps = tuple[Ints, Ints]
"""a step function that is 0 before its first time: times in order, and the change at each"""

NOTHING: Steps = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
"""0 at all times"""


def count(start: Ints, end: Ints) -> Steps:
    """Return how many of some intervals hold at a time; empty ones do not count."""
    good = end > start
    ones = np.ones(np.count_nonzero(good), dtype=np.int64)
    return total([(start[good], ones), (end[good], -ones)])


def total(parts: list[Steps]) -> Steps:
    """Add step functions; several changes at one time become one."""
    times, changes = (np.concatenate([column, *(part[side] for part in parts)]) for side, column in enumerate(NOTHING))
    unique, place = np.unique(times, return_inverse=True)
    summed = np.bincount(place, weights=changes, minlength=len(unique)).astype(np.int64)
    return unique[summed != 0], summed[summed != 0]


def level(function: Steps, times: Ints) -> Ints:
    """Return the value of a step function from each of some times on."""
    values = np.concatenate([[0], np.cumsum(function[1])])
    return values[np.searchsorted(function[0], times, side="right")]


def integral(function: Steps, end: int) -> int:
    """Return the area below a step function until an end, which is not before its last change."""
    times, changes = function
    return int((np.cumsum(changes) * np.diff(times, append=end)).sum())


def above(function: Steps, least: int = 1, grace: int = 0) -> Steps:
    """Return the step function that is 1 where another is at least so much, and has been for so long; else 0.

    Args:
        function: ends at 0.
        least: above 0.
        grace: how long, in the function's unit of time.
    """
    times, changes = function
    turns = times[np.diff((np.cumsum(changes) >= least).astype(np.int64), prepend=0) != 0]
    return count(turns[::2] + grace, turns[1::2])


def both(one: Steps, other: Steps) -> Steps:
    """Return the step function that is 1 where two are above 0, else 0; both end at 0."""
    return above(total([above(one), above(other)]), 2)
