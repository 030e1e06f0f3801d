"""The topology of a machine file that is most like a real machine, and what it leaves out or changes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from heddle_lab import units
from heddle_lab.errors import HeddleError
from heddle_lab.hardware.seen import Kind, Seen, SeenCpu
from heddle_lab.machine import MOST_CPUS, CoreClass, Topology

_LOCAL, _REMOTE = 10, 20
"""distances of nodes where the firmware tells none, as Linux assumes them"""

_FARTHEST = 254
"""the largest distance that a SLIT can tell"""

_FASTEST = 100
"""instructions per 100 ns of the fastest cores: the machine's unit"""

_SLOWER = {0: 100, 1: 60, 2: 40}
"""likewise where nothing is known of the ratio: of the fastest kind, the next, and the one after that"""


_ENOUGH = 0.7
"""part of the CPUs that a machine may be shrunk to for the sake of more LLCs"""


@dataclass(frozen=True)
class Shape:
    """What `of` found."""

    topology: Topology
    speeds: dict[str, str]
    """name of a class -> where its speed comes from"""
    distances: str
    """where the distances come from"""
    remarks: list[str]
    """what the machine has and the topology has not, a line each"""


@dataclass
class _Die:
    """One last-level cache of the file, or what becomes one."""

    package: int
    node: int
    cores: dict[int, list[SeenCpu]] = field(default_factory=dict)

    def kinds(self) -> Counter[str]:
        """Return how many cores there are of each kind."""
        return Counter(cpus[0].kind for cpus in self.cores.values())


@dataclass(frozen=True)
class _Counts:
    """The numbers of a topology."""

    sockets: int
    dies: int
    nodes: int
    kinds: Counter[str]
    """cores of each kind in a die"""
    threads: dict[str, int]
    """of each kind"""

    @property
    def cores(self) -> int:
        return self.kinds.total()

    @property
    def cpus(self) -> int:
        return self.sockets * self.dies * sum(number * self.threads[kind] for kind, number in self.kinds.items())

    @property
    def slots(self) -> int:
        """Number of CPUs as if each core had the most threads: QEMU counts so."""
        return self.sockets * self.dies * self.cores * max(self.threads.values())

    def fits(self, limit: int) -> bool:
        """Tell whether the machine has no more CPUs than a limit, and than are possible."""
        return self.cpus <= limit and self.slots <= MOST_CPUS


def of(seen: Seen, most: int | None = None) -> Shape:
    """Return the shape of a machine.

    Args:
        seen: the machine.
        most: number of CPUs to shrink it to; none: as many as it has.

    Raises:
        HeddleError: it has more CPUs than are possible.
    """
    remarks: list[str] = []
    dies = _alike(_dies(seen, remarks), remarks)
    nodes = list(dict.fromkeys(die.node for die in dies))
    if not _even(dies, nodes):
        remarks.append(f"{len(nodes)} nodes that do not hold as many LLCs each, one after the other: one node here")
        nodes = nodes[:1]
    counts = _counts(dies, nodes, remarks)
    counts = _fit(counts, most, remarks)
    distances, told = _distances(seen, nodes[: counts.nodes], remarks)
    classes, speeds = _classes(seen.kinds, counts)
    topology = Topology(
        sockets=counts.sockets,
        dies=counts.dies,
        cores=counts.cores,
        threads=max(counts.threads.values()),
        classes=classes,
        distances=distances,
    )
    remarks += _numbering(seen, topology)
    return Shape(topology=topology, speeds=speeds, distances=told, remarks=remarks)


def _dies(seen: Seen, remarks: list[str]) -> list[_Die]:
    """Return the LLCs, sockets and nodes one after the other; an LLC of several nodes is as many."""
    spread = Counter(llc for llc, _ in {(cpu.llc, cpu.package) for cpu in seen.cpus})
    if any(number > 1 for number in spread.values()):
        remarks.append("an LLC that several packages share: these are one socket here")
        packages = dict.fromkeys((cpu.package for cpu in seen.cpus), 0)
    else:
        packages = {cpu.package: cpu.package for cpu in seen.cpus}
    dies: dict[tuple[int, int, int], _Die] = {}
    for cpu in seen.cpus:
        package = packages[cpu.package]
        die = dies.setdefault((package, cpu.node, cpu.llc), _Die(package=package, node=cpu.node))
        die.cores.setdefault(cpu.core, []).append(cpu)
    if len(dies) > len(spread):
        remarks.append(f"LLCs of several nodes: one for each node here, {len(dies)} in place of {len(spread)}")
    nested = len({(die.package, die.node) for die in dies.values()}) == len({die.package for die in dies.values()})
    key = (lambda die: (die.node, die.package)) if nested else (lambda die: (die.package, die.node))
    return sorted(dies.values(), key=key)


def _alike(dies: list[_Die], remarks: list[str]) -> list[_Die]:
    """Return dies that all have the same kinds of cores.

    Where they differ, those of a socket and node are one; where these differ, those of a socket; then all.
    """
    for same in (lambda die: id(die), lambda die: (die.package, die.node), lambda die: die.package, lambda _: 0):
        merged: dict[object, _Die] = {}
        for die in dies:
            merged.setdefault(same(die), _Die(die.package, die.node)).cores.update(die.cores)
        if len({frozenset(die.kinds()) for die in merged.values()}) == 1:
            break
    if len(merged) < len(dies):
        what = units.counted(len(merged), "LLC")
        remarks.append(f"{len(dies)} LLCs with different kinds of cores: {what} with all kinds here")
    return list(merged.values())


def _even(dies: list[_Die], nodes: list[int]) -> bool:
    """Tell whether each node has as many dies, one after the other."""
    return [die.node for die in dies] == [nodes[i * len(nodes) // len(dies)] for i in range(len(dies))]


def _counts(dies: list[_Die], nodes: list[int], remarks: list[str]) -> _Counts:
    kinds = _usual((die.kinds() for die in dies), remarks)
    per_package = Counter(die.package for die in dies)
    sockets = len(per_package)
    if len(set(per_package.values())) > 1:
        remarks.append(f"{sockets} packages with {_several(per_package.values())} LLCs: one socket here")
        sockets = 1
    threads: dict[str, int] = {}
    for kind in kinds:
        cores = [cpus for die in dies for cpus in die.cores.values() if cpus[0].kind == kind]
        found = Counter(len(cpus) for cpus in cores)
        threads[kind] = found.most_common(1)[0][0]
        if len(found) > 1:
            remarks.append(f"cores with {_several(found)} threads: all have {threads[kind]} here")
    return _Counts(sockets=sockets, dies=len(dies) // sockets, nodes=len(nodes), kinds=kinds, threads=threads)


def _usual(found: Iterable[Counter[str]], remarks: list[str]) -> Counter[str]:
    """Return the cores of each kind that a die has on average, at least one."""
    dies = list(found)
    usual: Counter[str] = Counter()
    for kind in sorted(dies[0]):
        numbers = [die[kind] for die in dies]
        usual[kind] = max(1, round(sum(numbers) / len(numbers)))
        if len(set(numbers)) > 1:
            what = f"{kind} cores" if kind else "cores"
            remarks.append(f"LLCs with {_several(numbers)} {what}: each has {usual[kind]} here")
    return usual


def _several(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(set(numbers))))


def _fit(counts: _Counts, most: int | None, remarks: list[str]) -> _Counts:
    """Return the counts of a machine that is shrunk to a number of CPUs, if it has more.

    Raises:
        HeddleError: it has more than are possible, and is not to be shrunk.
    """
    if most is None and counts.slots > MOST_CPUS:
        places = f" take as many places as {counts.slots}" * (counts.slots > counts.cpus)
        what = f"{counts.cpus} CPUs{places}, and at most {MOST_CPUS} are possible"
        raise HeddleError(f"{what}: shrink the machine by --scale {MOST_CPUS}")
    limit = min(most or MOST_CPUS, MOST_CPUS)
    smaller = counts
    while not smaller.fits(limit):
        options = [one for dies in range(smaller.dies, 0, -1) if (one := _shrunk(smaller, dies, limit))]
        # The most LLCs, unless their cores would be too few to tell, or many CPUs were given up for them.
        good = [one for one in options if one.cores > 1 and one.cpus > limit * _ENOUGH]
        if options:
            smaller = max(good, key=lambda one: one.dies) if good else max(options, key=lambda one: one.cpus)
        else:
            smaller = _halved(smaller)
    if smaller.cpus < counts.cpus:
        what = f"{counts.cpus} CPUs, shrunk to {smaller.cpus}"
        remarks.append(f"{what}: costs and distances are those of the whole machine")
    return smaller


def _shrunk(counts: _Counts, dies: int, limit: int) -> _Counts | None:
    """Return counts with a number of dies in each socket, and as many cores as fit; none if one is too many."""
    if counts.sockets * dies % counts.nodes:
        return None
    kinds = counts.kinds.copy()
    while not (one := replace(counts, dies=dies, kinds=kinds)).fits(limit):
        largest = max(kinds, key=lambda kind: kinds[kind])
        if kinds[largest] == 1:
            return None
        kinds[largest] -= 1
    return one


def _halved(counts: _Counts) -> _Counts:
    """Return counts with half the nodes and sockets; with one of each, without SMT, then with one kind of core."""
    if counts.nodes > 1 or counts.sockets > 1:
        sockets, nodes = max(1, counts.sockets // 2), max(1, counts.nodes // 2)
        return replace(counts, sockets=sockets, nodes=nodes, dies=-(-nodes // sockets))
    if max(counts.threads.values()) > 1:
        return replace(counts, threads=dict.fromkeys(counts.threads, 1))
    return replace(counts, kinds=Counter({next(iter(counts.kinds)): 1}))


def _distances(seen: Seen, nodes: list[int], remarks: list[str]) -> tuple[list[list[int]], str]:
    """Return the distances of some nodes as firmware can tell them, and where they come from."""
    if len(nodes) == 1:
        return [[_LOCAL]], ""
    if not seen.distances:
        rows = [[_LOCAL if here == there else _REMOTE for there in nodes] for here in nodes]
        return rows, "assumed: Linux's where firmware tells none"
    found = [[seen.distances[here][there] for there in nodes] for here in nodes]
    rows = [
        [_LOCAL if i == j else min(max(value, _LOCAL + 1), _FARTHEST) for j, value in enumerate(row)]
        for i, row in enumerate(found)
    ]
    if rows != found:
        remarks.append(f"distances {found}, which no firmware may tell: changed")
    return rows, f"read from {seen.source}"


def _classes(kinds: dict[str, Kind], counts: _Counts) -> tuple[list[CoreClass], dict[str, str]]:
    """Return the classes, the fastest first, and where their speeds come from; none where all cores are alike."""
    if len(counts.kinds) < 2:
        return [], {}
    order = sorted(counts.kinds, key=lambda name: (-(kinds[name].rank or 0), -kinds[name].order))
    top = max(kinds[name].rank or 0 for name in order)
    classes, sources = [], {}
    for place, name in enumerate(order):
        rank = kinds[name].rank
        if rank is None:
            speed, source = _SLOWER.get(place, min(_SLOWER.values())), "assumed: as alderlake-8p8e's E cores, or less"
        else:
            speed, source = max(1, round(_FASTEST * rank / top)), kinds[name].source
        classes.append(CoreClass(name=name, cores=counts.kinds[name], threads=counts.threads[name], speed=speed))
        sources[name] = "the machine's unit: one instruction a ns" if place == 0 else source
    return classes, sources


def _numbering(seen: Seen, topology: Topology) -> list[str]:
    """Return a remark where the guest numbers the threads of a core otherwise than the machine."""
    cores: dict[int, list[int]] = {}
    for cpu in seen.cpus:
        cores.setdefault(cpu.core, []).append(cpu.number)
    if topology.threads == 1 or all(cpus == list(range(cpus[0], cpus[0] + len(cpus))) for cpus in cores.values()):
        return []
    first = min(cores.values())
    return [f"CPUs {', '.join(map(str, first))} are threads of one core: the guest numbers these one after the other"]
