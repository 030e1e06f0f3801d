"""A machine of ticks whose every state is known, and the measures computed from the states by brute force.

Each tick every CPU either keeps its task, gives it up or takes another; the events that a kernel would report come
out beside the states. Nothing here is shared with what is tested but the shape of the events.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from heddle_lab.measures import events
from heddle_lab.measures.events import NO_PRIO, STATE_LETTERS, STATE_PREEMPTED, Events, Kind

TICK_NS = 1_000
IDLE = 0


@dataclass
class Truth:
    """States by tick, from 0 on; tick t holds from t * TICK_NS on."""

    cpus: int
    masks: dict[int, int]
    """pid -> CPUs on which it may run"""
    prios: dict[int, int]
    """pid -> kernel priority"""
    running: list[list[int]] = field(default_factory=list)
    """tick -> CPU -> pid"""
    waiting: list[set[int]] = field(default_factory=list)
    rows: list[dict[str, int]] = field(default_factory=list)
    """events in order"""
    latencies: list[int] = field(default_factory=list)
    """of wakeups that ended in a run, ns"""
    spells: list[list[int]] = field(default_factory=list)
    """[tick of the wakeup, pid, ticks of work, 1 if it went back to sleep]"""

    @property
    def ticks(self) -> int:
        return len(self.running)

    def events(self) -> Events:
        columns = {name: np.array([row[name] for row in self.rows], dtype=np.int64) for name in events.COLUMNS}
        masks = tuple(dict.fromkeys(self.masks.values()))
        return events.merge([columns], {pid: f"task {pid}" for pid in self.masks}, masks, self.cpus)


def simulate(
    seed: int, cpus: int, tasks: int, ticks: int, *, masks: list[int] | None = None, lazy: float = 0.3
) -> Truth:
    """Let chance decide everything that a scheduler and its tasks may do.

    Args:
        seed: of chance.
        cpus: number of CPUs.
        tasks: number of tasks, pids from 100 on.
        ticks: length.
        masks: affinity masks to choose from; none: everywhere.
        lazy: how often an idle CPU ignores a task that it could run.
    """
    chance = np.random.default_rng(seed)
    everywhere = (1 << cpus) - 1
    pids = list(range(100, 100 + tasks))
    truth = Truth(
        cpus,
        {pid: int(chance.choice(masks or [everywhere])) & everywhere or everywhere for pid in pids},
        {pid: int(chance.choice([120, 120, 115, 125])) for pid in pids},
    )
    on_cpu = [IDLE] * cpus
    woken_at: dict[int, int] = {}
    waiting: dict[int, None] = {}
    spell: dict[int, list[int]] = {}
    for tick in range(ticks):
        now = tick * TICK_NS

        def emit(kind: Kind, cpu: int, pid: int, value: int = 0, now: int = now) -> None:
            truth.rows.append(
                {
                    "time_ns": now,
                    "cpu": cpu,
                    "kind": int(kind),
                    "current": on_cpu[cpu],
                    "pid": pid,
                    "value": value,
                    "prio": truth.prios.get(pid, NO_PRIO) if pid else 120,
                }
            )

        if tick == 0:
            for pid in pids:  # what the laboratory learns from the probe of affinity
                emit(Kind.AFFINITY, 0, pid, list(dict.fromkeys(truth.masks.values())).index(truth.masks[pid]))
        asleep = [pid for pid in pids if pid not in waiting and pid not in on_cpu]
        for pid in asleep:
            if chance.random() < 0.2:
                cpu = int(chance.integers(cpus))
                emit(Kind.WAKING, cpu, pid, cpu)
                emit(Kind.WAKEUP, cpu, pid, cpu)
                waiting[pid] = None
                woken_at[pid] = now
                spell[pid] = [tick, pid, 0, 0]
                truth.spells.append(spell[pid])
        for cpu in chance.permutation(cpus).tolist():
            _decide(chance, truth, on_cpu, waiting, woken_at, spell, cpu, now, lazy, emit)
        truth.running.append(list(on_cpu))
        truth.waiting.append(set(waiting))
        for pid in on_cpu:
            if pid:
                spell[pid][2] += 1
    return truth


def _decide(chance, truth, on_cpu, waiting, woken_at, spell, cpu, now, lazy, emit) -> None:
    """Let one CPU switch or not."""
    pid = on_cpu[cpu]
    able = [task for task in waiting if truth.masks[task] >> cpu & 1]
    if pid == IDLE:
        if not able or chance.random() < lazy:
            return
        state = 0
    else:
        what = chance.random()
        if what < 0.5 or spell[pid][2] == 0:
            return
        state = {0: STATE_LETTERS["S"], 1: STATE_PREEMPTED, 2: 0}[min(int((what - 0.5) * 6), 2)]
        if state in (0, STATE_PREEMPTED) and not able:
            return
        if state not in (0, STATE_PREEMPTED):
            spell[pid][3] = 1
    target = int(chance.choice(able)) if able and (pid == IDLE or chance.random() < 1 - lazy) else IDLE
    emit(Kind.SWITCH, cpu, target, state)
    on_cpu[cpu] = target
    if target:
        del waiting[target]
        if target in woken_at:
            truth.latencies.append(now - woken_at.pop(target))
    if pid and state in (0, STATE_PREEMPTED):
        waiting[pid] = None


def wasted_ticks(truth: Truth, grace: int = 0) -> int:
    """Return CPU ticks wasted: a maximum matching by augmenting paths, at every tick."""
    total = 0
    idle_for = [0] * truth.cpus
    waited: dict[int, int] = {}
    for tick in range(truth.ticks):
        for cpu in range(truth.cpus):
            fresh = tick == 0 or truth.running[tick - 1][cpu] != IDLE
            idle_for[cpu] = 0 if fresh else idle_for[cpu] + 1
        waited = {pid: waited.get(pid, -1) + 1 for pid in truth.waiting[tick]}
        if tick:  # put aside and taken up again, or asleep and awake, between two ticks: a new wait
            restarted = truth.waiting[tick] - truth.waiting[tick - 1]
            waited.update(dict.fromkeys(restarted, 0))
        free = [cpu for cpu in range(truth.cpus) if truth.running[tick][cpu] == IDLE and idle_for[cpu] >= grace]
        total += _matching([truth.masks[pid] for pid, ticks in waited.items() if ticks >= grace], free)
    return total


def _matching(masks: list[int], free: list[int]) -> int:
    owner: dict[int, int] = {}

    def place(task: int, seen: set[int]) -> bool:
        for cpu in free:
            if masks[task] >> cpu & 1 and cpu not in seen:
                seen.add(cpu)
                if cpu not in owner or place(owner[cpu], seen):
                    owner[cpu] = task
                    return True
        return False

    return sum(place(task, set()) for task in range(len(masks)))


def fluid_service(
    truth: Truth, weight: dict[int, Fraction], group: dict[int, str], group_weight: dict[str, Fraction]
) -> list[dict[int, Fraction]]:
    """Return what the fair machine has served each task by the begin of each tick, in ticks, exactly."""
    backlog: dict[int, Fraction | None] = {}
    served = dict.fromkeys(truth.masks, Fraction(0))
    history = []
    for tick in range(truth.ticks + 1):
        history.append(dict(served))
        for start, pid, work, slept in truth.spells:
            if start == tick:
                backlog[pid] = backlog.get(pid, Fraction(0)) + work if slept else None
                if backlog[pid] == 0:
                    del backlog[pid]
        left = Fraction(1)
        while left > 0 and backlog and tick < truth.ticks:
            rates = fair_rates(truth.cpus, list(backlog), weight, group, group_weight)
            step = min([left, *(work / rates[pid] for pid, work in backlog.items() if work is not None and rates[pid])])
            for pid in list(backlog):
                served[pid] += rates[pid] * step
                work = backlog[pid]
                if work is not None:
                    backlog[pid] = work - rates[pid] * step
                    if backlog[pid] == 0:
                        del backlog[pid]
            left -= step
    return history


def fair_rates(
    cpus: int, active: list[int], weight: dict[int, Fraction], group: dict[int, str], group_weight: dict[str, Fraction]
) -> dict[int, Fraction]:
    """Share CPUs among groups, then among their tasks, no task above one CPU."""
    groups = sorted({group[pid] for pid in active})
    caps = {name: Fraction(sum(group[pid] == name for pid in active)) for name in groups}
    shares = _fill(Fraction(cpus), {name: (group_weight[name], caps[name]) for name in groups})
    rates: dict[int, Fraction] = {}
    for name in groups:
        members = {pid: (weight[pid], Fraction(1)) for pid in active if group[pid] == name}
        rates |= _fill(shares[name], members)
    return rates


def _fill(capacity: Fraction, demands: dict) -> dict:
    """Give each its proportional share; one that cannot use it gets its cap and leaves; repeat."""
    shares: dict = {}
    rest = dict(demands)
    while rest:
        whole = sum(weight for weight, _ in rest.values())
        full = {key: cap for key, (weight, cap) in rest.items() if capacity * weight >= cap * whole}
        if not full:
            return shares | {key: capacity * weight / whole for key, (weight, _) in rest.items()}
        # Only those with the least cap per weight are sure to be full at the final level; all that are full now are.
        shares |= full
        capacity -= sum(full.values())
        rest = {key: demand for key, demand in rest.items() if key not in full}
    return shares
