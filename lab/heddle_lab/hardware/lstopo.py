"""A machine as hwloc's `lstopo FILE.xml` describes it, of hwloc 1 to 3.

There is no well-kept parser of these files for Python that does without hwloc's own library.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

import defusedxml
from defusedxml import ElementTree

from heddle_lab import units
from heddle_lab.errors import HeddleError
from heddle_lab.hardware.seen import KINDS, Kind, Seen, SeenCpu, cpu_mask, kinds_of, numbered

_LATENCY = 4
"""bit of a matrix's kind: distances are latencies, not bandwidths"""

_INSTRUCTIONS = "2"
"""cache_type of an instruction cache"""

_NAMES = {"IntelCore": "P", "IntelAtom": "E", "IntelLowPower": "LP-E", "AMDPerformance": "P", "AMDEfficiency": "E"}
"""kinds of cores: hwloc's words and those of machine files"""

_RANKS = ("FrequencyMaxMHz", "FrequencyBaseMHz")
"""what hwloc knows of a kind's speed, the best first"""


def read(path: Path) -> Seen:
    """Return what an XML file says.

    Raises:
        HeddleError: the file cannot be read, or is not hwloc's.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}") from error
    except (ParseError, defusedxml.DefusedXmlException) as error:
        raise HeddleError(f"{path}: not the XML of lstopo: {error}") from error
    if root is None or root.tag != "topology" or root.find("object") is None:
        raise HeddleError(f"{path}: not the XML of lstopo: it has no <topology> with objects")
    try:
        return _Document(root, path.name).seen()
    except (KeyError, ValueError) as error:
        raise HeddleError(f"{path}: not the XML of lstopo: {error} is missing or wrong") from error
    except HeddleError as error:
        raise HeddleError(f"{path}: {error}") from error


class _Document:
    """One file."""

    def __init__(self, root: Element, name: str) -> None:
        self._root = root
        self._name = name
        self._cpus = {_index(pu) for pu in self._objects("PU")}
        if not self._cpus:
            raise HeddleError("it has no PU; run lstopo without a filter")

    def seen(self) -> Seen:
        """Return all that the file says."""
        everyone = frozenset(self._cpus)
        core = self._owners(self._objects("Core"), {cpu: frozenset({cpu}) for cpu in self._cpus})
        package = self._owners([*self._objects("Package"), *self._objects("Socket")], dict.fromkeys(everyone, everyone))
        llc = self._owners(sorted(self._caches(), key=_depth), package)
        numbers = [numbered(groups.values()) for groups in (package, llc, core)]
        nodes = self._nodes()
        kind_of, kinds = self._kinds()
        return Seen(
            source=self._name,
            cpus=[
                SeenCpu(
                    number=cpu,
                    package=numbers[0][package[cpu]],
                    llc=numbers[1][llc[cpu]],
                    core=numbers[2][core[cpu]],
                    node=next((node for node, cpus in nodes.items() if cpu in cpus), min(nodes, default=0)),
                    kind=kind_of.get(cpu, ""),
                )
                for cpu in sorted(self._cpus)
            ],
            distances=self._distances(nodes),
            kinds=kinds,
            memory_mib=sum(_bytes(node) for node in self._objects("NUMANode")) // (1 << 20) or None,
            caches=self._cache_size(),
            model=" ".join(self._info("CPUModel").split()),
            x86=self._info("Architecture") in ("", "x86_64", "i686", "i386") and not self._info("CPUImplementer"),
            remarks=self._remarks(nodes),
        )

    def _objects(self, kind: str) -> list[Element]:
        return [element for element in self._root.iter("object") if element.get("type") == kind]

    def _caches(self) -> Iterator[Element]:
        """Yield the caches that hold data: `L3Cache` and so on, before hwloc 2 `Cache`."""
        for element in self._root.iter("object"):
            kind = element.get("type", "")
            if kind.endswith("Cache") and kind[0] != "M" and element.get("cache_type") != _INSTRUCTIONS:
                yield element

    def _members(self, element: Element, name: str = "cpuset") -> frozenset[int]:
        text = element.get(name)
        return frozenset(cpu_mask(text) & self._cpus) if text else frozenset()

    def _owners(self, elements: list[Element], default: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
        """Return the CPUs of the last element that holds each CPU, or a default where none does."""
        groups = [group for element in elements if (group := self._members(element))]
        return default | {cpu: group for group in groups for cpu in group}

    def _nodes(self) -> dict[int, frozenset[int]]:
        """Return the CPUs of each node that has some; of nodes with the same CPUs the first, as Linux does."""
        nodes: dict[int, frozenset[int]] = {}
        for element in sorted(self._objects("NUMANode"), key=_index):
            cpus = self._members(element)
            if cpus and not any(cpus & others for others in nodes.values()):
                nodes[_index(element)] = cpus
        return nodes

    def _distances(self, nodes: dict[int, frozenset[int]]) -> dict[int, dict[int, int]]:
        """Return the latencies between nodes with CPUs, as the firmware tells them; empty if the file has none."""
        order = [_index(element) for element in sorted(self._objects("NUMANode"), key=_index)]
        for element in self._root.iter("distances2"):
            if element.get("type") == "NUMANode" and int(element.get("kind", "0")) & _LATENCY:
                order, values = _words(element, "indexes"), _words(element, "u64values")
                break
        else:
            values = self._old_distances(len(order))
        if len(values) != len(order) ** 2 or not nodes.keys() <= set(order):
            return {}
        rows = {node: values[i * len(order) :][: len(order)] for i, node in enumerate(order)}
        return {here: {there: rows[here][order.index(there)] for there in nodes} for here in nodes}

    def _old_distances(self, nodes: int) -> list[int]:
        """Return the values of hwloc 1's matrix, which stands below an object and is relative to a base."""
        for element in self._root.iter("distances"):
            if int(element.get("nbobjs", "0")) == nodes > 1:
                base = float(element.get("latency_base", "1"))
                return [round(float(cell.get("value", "0")) * base) for cell in element.iter("latency")]
        return []

    def _kinds(self) -> tuple[dict[int, str], dict[str, Kind]]:
        """Return the kind of each CPU, and the kinds; empty where all are alike.

        hwloc also tells cores apart that differ in their highest frequency alone, as preferred cores do: these are
        one kind here.
        """
        members = [(element, _infos(element)) for element in self._root.iter("cpukind")]
        capacities = {
            cpu: float(about["LinuxCapacity"])
            for element, about in members
            if about.get("LinuxCapacity", "").isdecimal()
            for cpu in self._members(element)
        }
        if capacities.keys() == self._cpus:
            return kinds_of(capacities, "read from LinuxCapacity")
        typed = [(_NAMES.get(about["CoreType"], ""), element) for element, about in members if "CoreType" in about]
        kind_of = {cpu: name for name, element in typed if name for cpu in self._members(element)}
        if kind_of.keys() != self._cpus or len(set(kind_of.values())) < 2:
            return {}, {}
        return kind_of, {name: _kind(name, element) for name, element in typed}

    def _cache_size(self) -> str:
        caches = sorted(self._caches(), key=_depth)
        size = int(caches[-1].get("cache_size", "0")) if caches else 0
        return f"L{_depth(caches[-1])} of {size >> 10}K" if size else ""

    def _info(self, name: str) -> str:
        return next((about.get("value", "") for about in self._root.iter("info") if about.get("name") == name), "")

    def _remarks(self, nodes: dict[int, frozenset[int]]) -> list[str]:
        bare = len(self._objects("NUMANode")) - len(nodes)
        return [f"{units.counted(bare, 'node')} without CPUs of its own: left out"] if nodes and bare > 0 else []


def _index(element: Element) -> int:
    return int(element.attrib["os_index"])


def _depth(element: Element) -> int:
    return int(element.attrib["depth"])


def _bytes(node: Element) -> int:
    return int(node.get("local_memory", "0"))


def _words(element: Element, tag: str) -> list[int]:
    return [int(word) for part in element.iter(tag) for word in (part.text or "").split()]


def _infos(element: Element) -> dict[str, str]:
    return {about.get("name", ""): about.get("value", "") for about in element.iter("info")}


def _kind(name: str, element: Element) -> Kind:
    about, order = _infos(element), -KINDS.index(name)
    for info in _RANKS:
        if about.get(info, "").isdecimal():
            return Kind(name=name, order=order, rank=float(about[info]), source=f"read from {info}")
    return Kind(name=name, order=order)
