"""Which cgroup each task is in: moved there by `cgroup_attach_task`, or born there."""

from collections.abc import Mapping

import numpy as np

from heddle_lab.measures.events import Events, Kind
from heddle_lab.measures.fairness import Shares

EVENT = "cgroup:cgroup_attach_task"


def shares(events: Events, weights: Mapping[str, float]) -> Shares:
    """Return the groups of a window's tasks; tasks that were never seen to enter one are in the root, ''.

    A nested group competes by its own weight alone, as if all were children of the root.

    Args:
        events: of the window.
        weights: cpu.weight by path below the root, such as `a/b`; 100 where nothing is said.
    """
    found: dict[int, str] = {}
    for row in np.sort(np.concatenate([events.where(Kind.FORK), events.where(Kind.CGROUP)])).tolist():
        pid = int(events.pid[row])
        if events.kind[row] == Kind.CGROUP:
            found[pid] = events.paths[events.value[row]].strip("/")
        else:
            found[pid] = found.get(int(events.current[row]), "")
    return Shares(groups={pid: path for pid, path in found.items() if path}, group_weights=dict(weights))
