"""Does a verdict depend on what the model does not know? The experiment again, with the model varied.

The quantum bounds the error of what CPUs do to one another; speeds stand for what in reality depends on the code.
A difference that changes its sign when one of them is varied within what is plausible is the model's, not the
scheduler's: `comparison` prints it as "no difference".
"""

from heddle_lab.machine import Clock, Machine


def variants(machine: Machine) -> dict[str, Machine]:
    """Return the variations of a machine, by name; each differs from it in one thing."""
    clock = machine.clock
    return {name: machine.model_copy(update={"clock": varied}) for name, varied in _clocks(clock).items()}


def _clocks(clock: Clock) -> dict[str, Clock]:
    return {
        "Q/4": clock.model_copy(update={"quantum_ns": max(100, clock.quantum_ns // 4)}),
        "speed -30 %": clock.model_copy(update={"speed": _scaled(clock.speed, 0.7)}),
        "speed +30 %": clock.model_copy(update={"speed": _scaled(clock.speed, 1.3)}),
    }


def _scaled(speeds: list[int], factor: float) -> list[int]:
    """Return speeds times a factor; all CPUs alike, so that slow and fast ones keep their ratio."""
    return [max(1, round(speed * factor)) for speed in speeds]
