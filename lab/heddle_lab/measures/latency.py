"""Wakeup-to-run latency: from the wakeup to the switch to the woken task."""

import numpy as np

from heddle_lab.measures.events import Ints
from heddle_lab.measures.timeline import Cause, Timeline

QUANTILES = {"p50": (50, 100), "p90": (90, 100), "p99": (99, 100), "p999": (999, 1000)}
"""name -> rational number, so that ranks are exact"""

BEYOND = 10
"""how many samples lie beyond a reported percentile at least: of fewer, it would be the luck of those few"""


def wakeup_latencies(timeline: Timeline) -> Ints:
    """Return the latency of every wakeup that was followed by a run, ns, in ascending order.

    New tasks and preempted ones do not count. A wakeup at the very instant of the switch has latency 0.
    """
    waits = timeline.waits
    woken = (waits.cause == Cause.WOKEN) & waits.ran
    seen = waits.end_ns[woken] - waits.start_ns[woken]
    return np.sort(np.concatenate([np.zeros(timeline.instant, dtype=np.int64), seen]))


def quantiles(ordered: Ints) -> dict[str, int]:
    """Return the nearest-rank quantiles of samples in ascending order that have enough samples beyond them.

    A quantile q is the smallest sample that is not below a part q of all samples: always a sample, never a blend.
    """
    count = len(ordered)
    ranks = {name: -(-count * numerator // denominator) for name, (numerator, denominator) in QUANTILES.items()}
    return {name: int(ordered[rank - 1]) for name, rank in ranks.items() if count - rank >= BEYOND}
