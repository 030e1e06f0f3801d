"""Writes measured costs into a machine file; comments and all other values stay."""

from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from heddle_lab import paths, tomlfile, units
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import fit
from heddle_lab.hardware.calibration import Costs, Measured, Output, costs
from heddle_lab.machine import Costs as ModelCosts
from heddle_lab.machine import IdleState, Machine

_LINES = {"line_core_ns": "line_core", "line_llc_ns": "line_llc", "line_node_ns": "line_node"}
"""key of a machine file -> measurement: one way of a message through a line"""

_FITTED = {"syscall_ns": "syscall", "exception_ns": "fault"}
"""likewise of what takes a guest to find, and is one operation"""

_KERNELS = ("syscall", "fault", "switch_", "interrupt", "wake_", "timer_")
"""beginnings of the names of what the kernel does"""

_INTERRUPTS = ("ipi_send_ns", "ipi_deliver_ns", "interrupt_ns")

README = """\
./heddle-calibrate > output.json

It takes one to three minutes, and needs nothing but Linux on x86-64. As root it is hardly disturbed by other programs.
`heddle calibrate --from output.json --machine FILE.toml` then writes the costs into that machine's file;
`heddle machine --from lstopo.xml --out FILE.toml` makes one.
"""


def export(folder: Path) -> list[Path]:
    """Write the measuring program, and how to use it, to a folder; return the files.

    Raises:
        HeddleError: the program is not built, or the folder is not writable.
    """
    program, text = folder / "heddle-calibrate", folder / "README"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        program.write_bytes(paths.calibrate().read_bytes())
        program.chmod(0o755)
        text.write_text(README, encoding="utf-8")
    except OSError as error:
        raise HeddleError(f"cannot write {error.filename}: {error.strerror}") from error
    return [program, text]


def apply(text: str, where: str, output: Output, guest: fit.Guest = fit.in_guest) -> tuple[str, list[list[str]]]:
    """Return a machine file with costs as measured, and a table: what, on the machine, interval, in a guest.

    Args:
        text: of the file.
        where: its name, for errors.
        output: what the measuring program printed.
        guest: runs the program in a guest.

    Raises:
        HeddleError: the file is wrong or of another machine, or a guest fails.
    """
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise HeddleError(f"{where}: {error}") from error
    box = tomlfile.validate(document.unwrap(), Machine, where)
    if box.cpus != output.cpus:
        cpus = units.counted(output.cpus, "CPU")
        raise HeddleError(f"{where}: a machine of {box.cpus} CPUs, and the costs are those of one with {cpus}")
    measured = costs(output)
    direct = {key: measured[name] for key, name in _LINES.items() if name in measured and _has(box, key)}
    locked = max(0.0, measured["locked_add"].ns - measured["add"].ns)
    known = {key: round(cost.ns) for key, cost in direct.items()} | {"locked_ns": round(locked)}
    start = box.model_copy(update={"costs": box.costs.model_copy(update=known)})
    found, seen = fit.fit(fit.small(start), measured, guest)
    table = document.setdefault("costs", tomlkit.table())
    for key, cost in direct.items():
        _put(table, key, known[key], f"measured: {cost.about}")
    _put(table, "locked_ns", known["locked_ns"], f"measured: {measured['locked_add'].about}, less an ordinary one")
    _put_fitted(table, found, measured, seen)
    _say(document, output)
    result = tomlkit.dumps(document)
    tomlfile.validate(tomlkit.parse(result).unwrap(), Machine, where)
    return result, _rows(measured, seen, found.slowdown)


def _has(box: Machine, key: str) -> bool:
    """Tell whether a machine has that distance; one whose lines are not tracked gets the nearest."""
    return key == "line_core_ns" or getattr(box.costs, key) is not None


def _put(table: Any, key: str, value: Any, comment: str) -> None:
    entry = tomlkit.item(value)
    table[key] = entry
    table[key].comment(comment)


def _put_fitted(table: Any, found: ModelCosts, measured: Costs, seen: Costs) -> None:
    """Add what the guests found."""

    def about(name: str) -> str:
        there = units.digits(seen[name].ns / found.slowdown)
        return f"fitted: {name} takes {units.digits(measured[name].ns)} ns ({measured[name].about}), in a guest {there}"

    _put(table, "slowdown", found.slowdown, about("switch_thread"))
    for key, name in _FITTED.items():
        _put(table, key, getattr(found, key), about(name))
    _put(table, "cr3_ns", found.cr3_ns, about("switch_process"))
    if "interrupt" in measured:
        for key in _INTERRUPTS:
            _put(table, key, getattr(found, key), f"{about('interrupt')}; its parts are assumed to be as before")
    wakes = [name for name in measured if name.startswith("wake_")]
    if wakes and found.idle:
        span = f"{units.digits(measured[wakes[0]].ns / 1000)} to {units.digits(measured[wakes[-1]].ns / 1000)} us"
        _put(table, "idle", _array(found.idle), f"exits fitted: a wakeup takes {span}, the longer the CPU was idle")


def _array(states: tuple[IdleState, ...]) -> tomlkit.items.Array:
    array = tomlkit.array()
    for state in states:
        pair = tomlkit.inline_table()
        pair.update({"residency_us": state.residency_us, "exit_us": state.exit_us})
        array.append(pair)
    return array


def _say(document: tomlkit.TOMLDocument, output: Output) -> None:
    """Write into the file's source how the costs came about."""
    how = f"costs by heddle calibrate, at a load average of {output.load_average}, {output.stolen:.1%} stolen"
    source = str(document["source"]).partition("; costs")[0]
    document["source"] = f"{source}; {how}"


def _rows(measured: Costs, seen: Costs, slowdown: float) -> list[list[str]]:
    """Return the table's lines; a guest has no processor of its own, nor lines of user space that move."""

    def row(name: str, cost: Measured) -> list[str]:
        fitted = name in seen and name.startswith(_KERNELS)
        there = units.digits(seen[name].ns / slowdown) if fitted else ""
        return [name, units.digits(cost.ns), f"{units.digits(cost.low)} … {units.digits(cost.high)}", there]

    return [row(name, cost) for name, cost in measured.items()]
