"""Instructions per switch, from events whose stretches are known."""

import numpy as np

from heddle_lab.measures import cost, events
from heddle_lab.measures.events import Events, Kind

Row = tuple[int, int, Kind, int]
"""time in ns, CPU, kind, pid"""


def made(rows: list[Row]) -> Events:
    columns = {
        "time_ns": [row[0] for row in rows],
        "cpu": [row[1] for row in rows],
        "kind": [int(row[2]) for row in rows],
        "current": [row[3] for row in rows],
        "pid": [row[3] for row in rows],
        "value": [0] * len(rows),
        "prio": [120] * len(rows),
    }
    return events.merge([{name: np.array(values) for name, values in columns.items()}], {}, cpus=2)


SWITCH: list[Row] = [
    (1000, 0, Kind.SCHEDULE_ENTRY, 1),
    (2500, 0, Kind.SWITCH, 2),
    (4000, 0, Kind.SCHEDULE_EXIT, 2),
]
WAKEUP: list[Row] = [(5000, 0, Kind.WAKING, 1), (7000, 0, Kind.WAKEUP, 1)]


def test_a_switch_costs_its_call_and_its_wakeup_less_the_recording() -> None:
    assert cost.insns_per_switch(made([*SWITCH, *WAKEUP]), [100], 0.0) == 3000 + 2000
    assert cost.insns_per_switch(made([*SWITCH, *WAKEUP]), [100], 500.0) == (3000 - 2 * 500) + (2000 - 500)


def test_time_becomes_instructions_at_the_speed_of_the_cpu() -> None:
    slow: list[Row] = [(time, 1, kind, pid) for time, _, kind, pid in [*SWITCH, *WAKEUP]]
    assert cost.insns_per_switch(made(slow), [100, 50], 0.0) == (3000 + 2000) / 2


def test_a_call_that_switched_to_nobody_is_charged_to_the_switches() -> None:
    call: list[Row] = [(8000, 0, Kind.SCHEDULE_ENTRY, 2), (9000, 0, Kind.SCHEDULE_EXIT, 2)]
    assert cost.insns_per_switch(made([*SWITCH, *call]), [100], 0.0) == 3000 + 1000


def test_a_wakeup_that_another_cpu_finishes_counts_at_the_mean_of_the_others() -> None:
    remote: list[Row] = [(8000, 0, Kind.WAKING, 3), (9000, 1, Kind.WAKEUP, 3), (9500, 0, Kind.WAKEUP, 4)]
    assert cost.insns_per_switch(made([*SWITCH, *WAKEUP, *remote]), [100], 0.0) == 3000 + 2 * 2000


def test_the_switch_to_a_new_task_has_no_exit_and_counts_at_the_mean() -> None:
    born: list[Row] = [(20_000, 0, Kind.SCHEDULE_ENTRY, 2), (21_000, 0, Kind.SWITCH, 9)]
    again: list[Row] = [(time + 30_000, cpu, kind, pid) for time, cpu, kind, pid in SWITCH]
    assert cost.insns_per_switch(made([*SWITCH, *born, *again]), [100], 0.0) == 3000


def test_nothing_is_made_of_nothing() -> None:
    assert cost.insns_per_switch(made(WAKEUP), [100], 0.0) is None
    assert cost.event_insns(100, 200, 0, 100) == 0
    assert cost.event_insns(10_000, 15_000, 10, 50) == 250
