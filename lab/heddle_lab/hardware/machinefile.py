"""Writes a machine file for a real machine: each value says where it comes from."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Array, Table

from heddle_lab import machine, paths, tomlfile, units
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import lstopo, shape, sysfs
from heddle_lab.hardware.seen import Seen
from heddle_lab.hardware.shape import Shape
from heddle_lab.machine import Machine

_VIRTUAL = "-virtual"
"""end of the names of shipped machines that are guests themselves"""


def read(source: Path) -> Seen:
    """Return what a machine says of itself.

    Args:
        source: `/` for this machine, a copy of /sys, a tar archive of that, or an XML file of lstopo.

    Raises:
        HeddleError: the file cannot be read, or is none of these.
    """
    if not source.exists():
        raise HeddleError(f"{source}: no such file or folder")
    return lstopo.read(source) if source.suffix == ".xml" else sysfs.read(source)


def name_of(text: str) -> str:
    """Return a text as the name of a machine, such as `intel-xeon-6230-80`."""
    plain = re.sub(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*", " ", text.lower())
    return re.sub("[^a-z0-9]+", "-", plain).strip("-") or "machine"


def write(seen: Seen, name: str | None = None, most: int | None = None) -> tuple[str, list[str]]:
    """Return the machine file, and in what it differs from the machine.

    Args:
        seen: the machine.
        name: what the file calls it; none: after its processor.
        most: number of CPUs to shrink it to; none: as many as it has.

    Raises:
        HeddleError: it has more CPUs than are possible.
    """
    found = shape.of(seen, most)
    name = name or f"{name_of(seen.model)}-{found.topology.cpus}"
    remarks = [*seen.remarks, *found.remarks]
    if not seen.x86:
        remarks.append(f"{seen.model or 'a processor'}, which is not x86-64: the guest's processor is")
    text = tomlkit.dumps(_document(seen, found, name, remarks))
    tomlfile.validate(tomlkit.parse(text).unwrap(), Machine, name)
    return text, remarks


class _Shipped:
    """Shipped machines, the likest first: costs that are not known are as there."""

    def __init__(self, seen: Seen, found: Shape) -> None:
        vendor = "Intel" if "intel" in seen.model.lower() else "AMD"
        top = found.topology

        def unlike(box: Machine) -> tuple[bool, bool, bool, bool, float]:
            return (
                seen.virtual != box.name.endswith(_VIRTUAL),
                bool(top.classes) != bool(box.topology.classes),
                (top.nodes > 1) != (box.topology.nodes > 1) or (top.llcs > 1) != (box.topology.llcs > 1),
                vendor not in box.summary,
                abs(math.log(top.cpus / box.cpus)),
            )

        boxes = [machine.load(name) for name in tomlfile.names(paths.MACHINES)]
        self._boxes = sorted((box for box in boxes if box.caches), key=unlike)

    def value(self, get: Callable[[Machine], Any]) -> tuple[Any, str]:
        """Return a value of the likest machine that has it, and the machine's name."""
        return next((value, box.name) for box in self._boxes if (value := get(box)) is not None)

    def memory_mib(self, cpus: int) -> tuple[int, str]:
        """Return the memory of the machine with the number of CPUs that is nearest, and its name."""
        box = min(self._boxes, key=lambda box: abs(math.log(box.cpus / cpus)))
        return box.memory_mib, box.name


def _document(seen: Seen, found: Shape, name: str, remarks: list[str]) -> tomlkit.TOMLDocument:
    top, shipped = found.topology, _Shipped(seen, found)
    document = tomlkit.document()
    if remarks:
        document.add(tomlkit.comment("What differs from the machine:"))
        for remark in remarks:
            document.add(tomlkit.comment(f"  {remark}"))
    what = f"{units.counted(top.cpus, 'CPU')} in {units.counted(top.llcs, 'LLC')}"
    document["name"] = name
    document["summary"] = f"{seen.model or 'a machine'}: {what}"
    document["source"] = f"topology read from {seen.source}; costs: see the values"
    memory_mib, other = shipped.memory_mib(top.cpus)
    real = f" (the machine has {seen.memory_mib})" if seen.memory_mib else ""
    memory_mib = max(512, min(memory_mib, seen.memory_mib or memory_mib))
    _put(document, "memory_mib", memory_mib, f"as {other}: the laboratory's host has to hold it{real}")
    document["topology"] = _topology(seen, found)
    if top.threads > 1:
        clock = tomlkit.table()
        smt, other = shipped.value(lambda box: box.clock.smt if box.topology.threads > 1 else None)
        _put(clock, "smt", smt, f"assumed: as {other}")
        document["clock"] = clock
    document["caches"] = _caches(top, shipped)
    document["costs"] = _costs(seen, top, shipped)
    return document


def _put(table: Table | tomlkit.TOMLDocument, key: str, value: Any, comment: str) -> None:
    """Add a value with where it comes from."""
    whole = isinstance(value, float) and value.is_integer()
    entry = value if isinstance(value, Array) else tomlkit.item(int(value) if whole else value)
    table[key] = entry
    if comment:
        entry.comment(comment)


def _topology(seen: Seen, found: Shape) -> Table:
    top, table = found.topology, tomlkit.table()
    read = f"read from {seen.source}"
    for key, value in (("sockets", top.sockets), ("dies", top.dies), ("cores", top.cores), ("threads", top.threads)):
        if value > 1 or key == "cores":
            _put(table, key, value, f"{read}{f'; {seen.caches}' if key == 'cores' and seen.caches else ''}")
    if top.nodes > 1:
        rows = tomlkit.array()
        for row in top.distances:
            rows.add_line(row)
        rows.add_line(indent="")
        _put(table, "distances", rows, found.distances)
    if top.classes:
        classes = tomlkit.aot()
        for kind in top.classes:
            part = tomlkit.table()
            part["name"] = kind.name
            _put(part, "cores", kind.cores, read)
            _put(part, "threads", kind.threads, read)
            _put(part, "speed", kind.speed, found.speeds[kind.name])
            classes.append(part)
        table["classes"] = classes
    return table


def _assumed(table: Table, keys: Iterable[str], shipped: _Shipped, part: str) -> None:
    """Add values of the likest shipped machines."""
    for key in keys:
        value, other = shipped.value(lambda box, key=key: getattr(getattr(box, part), key))  # type: ignore[misc]
        _put(table, key, value, f"assumed: as {other}")


def _caches(top: machine.Topology, shipped: _Shipped) -> Table:
    table = tomlkit.table()
    keys = ["footprint_kib", "misses", "core_ns", *_farther(top, "llc_ns", "node_ns")]
    _assumed(table, keys, shipped, "caches")
    return table


def _farther(top: machine.Topology, llc: str, node: str) -> list[str]:
    """Return which keys a topology needs: of other LLCs of the node, of other nodes."""
    return [llc] * (top.llcs > top.nodes) + [node] * (top.nodes > 1)


def _costs(seen: Seen, top: machine.Topology, shipped: _Shipped) -> Table:
    table = tomlkit.table()
    keys = ["slowdown", "line_core_ns", *_farther(top, "line_llc_ns", "line_node_ns"), "locked_ns"]
    keys += ["ipi_send_ns", "ipi_deliver_ns", "syscall_ns", "interrupt_ns", "exception_ns", "cr3_ns"]
    _assumed(table, keys, shipped, "costs")
    states, comment = seen.idle, f"read from cpuidle of {seen.source}"
    if not states or seen.virtual:  # what a guest is told leaves out its hypervisor
        states, other = shipped.value(lambda box: box.costs.idle or None)
        comment = f"assumed: as {other}"
    idle = tomlkit.array()
    for state in states:
        pair = tomlkit.inline_table()
        pair.update({"residency_us": state.residency_us, "exit_us": int(state.exit_us)})
        idle.append(pair)
    _put(table, "idle", idle, comment)
    if seen.mwait is None:
        mwait, other = shipped.value(lambda box: box.costs.mwait)
        _put(table, "mwait", mwait, f"assumed: as {other}")
    else:
        _put(table, "mwait", seen.mwait, f"read from cpuidle of {seen.source}")
    return table
