"""Does a verdict depend on what the model does not know? The experiment again, with the model varied.

The quantum bounds the error of what CPUs do to one another; speeds, the SMT factor and the footprint of tasks stand for
what in reality depends on the code. A difference that changes its sign when one of them is varied within what is
plausible is the model's, not the scheduler's: `comparison` prints it as "no difference".
"""

from heddle_lab.machine import Machine

SMT = (50, 75)
"""per cent; from no gain by the second thread to half a core"""


def variants(machine: Machine) -> dict[str, Machine]:
    """Return the variations of a machine, by name; each differs from it in one thing."""
    clock, caches = machine.clock, machine.caches
    varied = {
        "Q/4": machine.model_copy(
            update={"clock": clock.model_copy(update={"quantum_ns": max(100, clock.quantum_ns // 4)})}
        ),
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
    return varied
