"""Does a verdict depend on what the model does not know? The experiment again, with the model varied.

The quantum bounds the error of what CPUs do to one another; speeds, the SMT factor and the footprint of tasks stand for
what in reality depends on the code. A difference that changes its sign when one of them is varied within what is
plausible is the model's, not the scheduler's: `comparison` calls it "unknown".
"""

from heddle_lab.machine import Machine

SMT = (50, 75)
"""per cent; from no gain by the second thread to half a core"""


COSTS = {
    "cache lines": ("line_core_ns", "line_llc_ns", "line_node_ns"),
    "locked instructions": ("locked_ns",),
    "IPIs": ("ipi_send_ns", "ipi_deliver_ns"),
    "kernel entry": ("syscall_ns", "interrupt_ns", "exception_ns", "cr3_ns"),
}
"""fields of `Costs` that are varied together"""

FACTORS = {"none": 0.0, "half": 0.5, "double": 2.0}


def _with_costs(machine: Machine) -> dict[str, Machine]:
    """Return the machine with each of its costs left out, halved and doubled."""
    costs = machine.costs
    varied = {}
    for factor, times in FACTORS.items():
        for name, fields in COSTS.items():
            values = {field: getattr(costs, field) for field in fields}
            update = {field: round(value * times) for field, value in values.items() if value}
            if update:
                varied[f"{name}: {factor}"] = costs.model_copy(update=update)
        if costs.idle:
            states = tuple(state.model_copy(update={"exit_us": state.exit_us * times}) for state in costs.idle)
            varied[f"idle exit: {factor}"] = costs.model_copy(update={"idle": states})
    return {name: machine.model_copy(update={"costs": costs}) for name, costs in varied.items()}


def variations(machine: Machine) -> dict[str, Machine]:
    """Return the variations of a machine, by name; each differs from it in one thing."""
    clock, caches = machine.clock, machine.caches
    varied = {
        "Q/4": machine.at_finer_quantum(4),
        "speed -30 %": machine.at_speed(0.7),
        "speed +30 %": machine.at_speed(1.3),
    }
    if machine.topology.threads > 1:
        for share in SMT:
            slower = clock.model_copy(update={"smt": share})
            varied[f"SMT {share} %"] = machine.model_copy(update={"clock": slower})
    if caches:
        larger = caches.model_copy(update={"footprint_kib": 2 * caches.footprint_kib})
        varied["no cold caches"] = machine.model_copy(update={"caches": None})
        varied["cold caches x2"] = machine.model_copy(update={"caches": larger})
    return varied | _with_costs(machine)
