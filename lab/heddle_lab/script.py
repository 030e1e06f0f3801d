"""What `heddle-replay` plays: the steps of each task, in the form that `lab/guest/src/replay/script.rs` describes."""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from heddle_lab.measures import perfscript
from heddle_lab.measures.events import Ints
from heddle_lab.tasks import NOBODY, Task

PIECE_NS = 1_000_000
"""of a task that computes: what counts as a run"""

_RUN, _WAKE, _WAIT, _SLEEP, _UNTIL, _FOREVER = range(6)
"""kinds of steps"""

_FEWEST = 8
"""sleeps from which on it can be told whether they are regular"""

_DEADLINE = -1
"""priority of a task of SCHED_DEADLINE, which is played as one of nice 0"""

Step = tuple[int, int]


def encode(tasks: list[Task], duration_ns: int) -> bytes:
    """Return the script.

    Args:
        tasks: all that are played.
        duration_ns: of the trace.
    """
    numbers = {task.pid: number for number, task in enumerate(tasks)}
    components = _components(tasks)
    out = bytearray()
    _write(out, (duration_ns, len(tasks)))
    for task, component in zip(tasks, components, strict=True):
        name = perfscript.raw(task.comm)
        steps = list(_steps(task, numbers, duration_ns))
        computes = task.computes(duration_ns)
        runs = len(task.asleep_ns) + (int(task.runs_ns[-1]) // PIECE_NS if computes else 0)
        span = (duration_ns if computes else task.end_ns) - task.begin_ns
        _write(out, (len(name),))
        out += name
        prio = 120 if task.prio == _DEADLINE else task.prio
        _write(out, (prio, component, span, task.cpu_ns, runs, len(steps)))
        _write(out, chain.from_iterable(steps))
    return bytes(out)


def _write(out: bytearray, numbers: Iterable[int]) -> None:
    """Append numbers in LEB128."""
    for number in numbers:
        left = number
        while left >= 0x80:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)


def _steps(task: Task, numbers: dict[int, int], duration_ns: int) -> Iterator[Step]:
    """Yield the steps of a task.

    Args:
        task: the task.
        numbers: pid -> number in the script.
        duration_ns: of the trace.
    """
    if task.first_waker is not None:
        yield (_UNTIL, task.begin_ns) if task.first_waker == NOBODY else (_WAIT, 0)
    regular = is_regular(task)
    wakes = iter(task.wakes)
    wake = next(wakes, None)
    last = len(task.runs_ns) - 1
    for number, length in enumerate(task.runs_ns.tolist()):
        spent = 0
        while wake is not None and wake.run == number:
            at = min(wake.spent_ns, length)
            if at > spent:
                yield _RUN, at - spent
                spent = at
            yield _WAKE, numbers[wake.woken]
            wake = next(wakes, None)
        if number == last:
            yield (_FOREVER, 0) if task.computes(duration_ns) else (_RUN, length - spent)
            return
        yield _RUN, length - spent
        if task.wakers[number] != NOBODY:
            yield _WAIT, 0
        elif regular:
            yield _UNTIL, int(task.awake_ns[number])
        else:
            yield _SLEEP, int(task.awake_ns[number] - task.asleep_ns[number])


def is_regular(task: Task) -> bool:
    """Tell whether the times at which no task wakes it are more regular than the lengths of those sleeps.

    It sleeps until a time then, such as that of its next period, however long it ran before. Else it sleeps for a time.
    """
    timed = task.wakers == NOBODY
    if np.count_nonzero(timed) < _FEWEST:
        return False
    return _variation(np.diff(task.awake_ns[timed])) < _variation(task.sleeps_ns[timed])


def _variation(values: Ints) -> float:
    """Return the standard deviation as a part of the mean."""
    return float(values.std() / max(values.mean(), 1.0))


def _components(tasks: list[Task]) -> list[int]:
    """Return for each task the number of those that wake one another, directly or not."""
    parent = {task.pid: task.pid for task in tasks}

    def root(pid: int) -> int:
        while parent[pid] != pid:
            parent[pid] = pid = parent[parent[pid]]
        return pid

    for task in tasks:
        for wake in task.wakes:
            parent[root(wake.woken)] = root(task.pid)
    dense: dict[int, int] = {}
    return [dense.setdefault(root(task.pid), len(dense)) for task in tasks]
