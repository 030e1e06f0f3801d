"""Costs of a machine file by which the measuring program gives in a guest what it gave on the machine.

A guest's kernel executes each instruction in 1 ns, and `slowdown` says how many of the machine's take as long. So a
guest's time is compared with the machine's times `slowdown`. Costs begin at 0 and grow by what the guest lacks.
"""

from collections.abc import Callable
from typing import Any

from heddle_lab import kernels, paths, vm
from heddle_lab.hardware.calibration import Costs, costs, parse
from heddle_lab.job import Job, Step
from heddle_lab.machine import Costs as ModelCosts
from heddle_lab.machine import IdleState, Machine, Topology

ROUNDS = 3
"""of fitting; each boots a guest"""

KERNEL = "7.3"

_PROGRAM = "/usr/local/bin/heddle-calibrate"

_GUEST_MS = 10
"""virtual ms for each measurement: nothing disturbs a guest"""

_FASTEST, _SLOWEST = 1.0, 100.0
"""bounds of `slowdown`"""

Guest = Callable[[Machine], Costs]


def in_guest(box: Machine) -> Costs:
    """Run the measuring program in a guest on a machine.

    Raises:
        HeddleError: the guest or the program fails.
    """
    step = Step(name="calibrate", argv=[_PROGRAM, str(_GUEST_MS), "1"], timeout_ns=100_000_000_000)
    files = {_PROGRAM: (0o755, paths.calibrate().read_bytes())}
    guest = vm.Guest(machine=box, kernel=kernels.find(KERNEL), job=Job(steps=[step]), files=files)
    return costs(parse(vm.run(guest, cold=True).check().step("calibrate").stdout, "heddle-calibrate in the guest"))


def small(box: Machine) -> Machine:
    """Return two cores of a machine: all that is fitted takes no more, and a small guest is fast."""
    topology = Topology(cores=2, threads=box.topology.threads)
    near = {"llc_ns": None, "node_ns": None}
    lines = {"line_llc_ns": None, "line_node_ns": None}
    changes = {
        "topology": topology,
        "memory_mib": min(box.memory_mib, 1024),
        "caches": box.caches and box.caches.model_copy(update=near),
        "costs": box.costs.model_copy(update=lines),
    }
    return box.model_copy(update=changes)


def fit(box: Machine, measured: Costs, guest: Guest = in_guest) -> tuple[ModelCosts, Costs]:
    """Return costs for a machine, and what the program gives in a guest with them.

    Args:
        box: the machine; its lines and locked instructions are as measured, its other costs a first guess.
        measured: what the program gave on it.
        guest: runs the program in a guest.

    Raises:
        HeddleError: a guest fails.
    """
    ratio = _shares(box.costs)
    bare = {"syscall_ns": 0, "exception_ns": 0, "cr3_ns": 0, "ipi_send_ns": 0, "ipi_deliver_ns": 0, "interrupt_ns": 0}
    idle = tuple(state.model_copy(update={"exit_us": 0.0}) for state in box.costs.idle)
    found = box.costs.model_copy(update={**bare, "idle": idle, "slowdown": 1.0})
    seen = guest(box.model_copy(update={"costs": found}))
    for _ in range(ROUNDS):
        found = _closer(found, measured, seen, ratio)
        seen = guest(box.model_copy(update={"costs": found}))
    return found, seen


def _shares(known: ModelCosts) -> tuple[float, float, float]:
    """Return the parts of an interrupt's time that are the sender's, the way's, and the entry's: one is measured."""
    parts = (known.ipi_send_ns, known.ipi_deliver_ns, known.interrupt_ns)
    whole = sum(parts) or 1
    return parts[0] / whole, parts[1] / whole, parts[2] / whole


def _closer(known: ModelCosts, measured: Costs, seen: Costs, ratio: tuple[float, float, float]) -> ModelCosts:
    """Return costs with which a guest is nearer to the machine.

    Args:
        known: the guest's costs.
        measured: on the machine.
        seen: in the guest with these costs.
        ratio: what of an interrupt's time is the sender's, the way's, the entry's.
    """
    # A message through a pipe is a switch and two system calls; the rest is the kernel's instructions.
    own = known.slowdown * 2 * known.syscall_ns
    instructions = seen["switch_thread"].ns - own
    left = measured["switch_thread"].ns - 2 * known.syscall_ns
    slowdown = round(min(max(instructions / max(left, 1.0), _FASTEST), _SLOWEST), 2)

    def lack(name: str) -> float:
        """Return how much longer an operation takes on the machine, real ns."""
        return measured[name].ns - seen[name].ns / slowdown

    def more(cost: int, part: float) -> int:
        return max(0, round(cost + part))

    space = measured["switch_process"].ns - measured["switch_thread"].ns
    space -= (seen["switch_process"].ns - seen["switch_thread"].ns) / slowdown
    update: dict[str, Any] = {
        "slowdown": slowdown,
        "syscall_ns": more(known.syscall_ns, lack("syscall")),
        "exception_ns": more(known.exception_ns, lack("fault")),
        "cr3_ns": more(known.cr3_ns, space),
    }
    if "interrupt" in measured and "interrupt" in seen:
        names = ("ipi_send_ns", "ipi_deliver_ns", "interrupt_ns")
        for name, part in zip(names, ratio, strict=True):
            update[name] = more(getattr(known, name), part * lack("interrupt"))
    if wakes := _wakes(measured):
        update["idle"] = tuple(_exit(known.idle, place, wakes, lack) for place in range(len(known.idle)))
    return known.model_copy(update=update)


def _wakes(measured: Costs) -> list[int]:
    """Return for how long CPUs had idled that were woken, us."""
    return sorted(int(name.removeprefix("wake_")) for name in measured if name.startswith("wake_"))


def _exit(states: tuple[IdleState, ...], place: int, wakes: list[int], lack: Callable[[str], float]) -> IdleState:
    """Return an idle state whose exit takes what the longest measured idling in it says; else the state itself."""
    state = states[place]
    ends = states[place + 1].residency_us if place + 1 < len(states) else max(wakes) + 1
    inside = [idle_us for idle_us in wakes if state.residency_us < idle_us < ends]
    if not inside:
        return state
    exit_us = state.exit_us + lack(f"wake_{max(inside)}") / 1000
    return state.model_copy(update={"exit_us": round(min(max(exit_us, 0.0), 10_000.0), 2)})
