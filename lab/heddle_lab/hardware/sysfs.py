"""A machine as Linux describes it below /sys and /proc: of this machine, or saved, as by hwloc-gather-topology."""

import re
import statistics
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heddle_lab import units
from heddle_lab.errors import HeddleError
from heddle_lab.hardware.seen import KINDS, Kind, Seen, SeenCpu, cpu_list, cpu_mask, kinds_of, numbered
from heddle_lab.machine import IdleState

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"

_TYPES = {"cpu_core": "P", "cpu_atom": "E", "cpu_lowpower": "LP-E"}
"""Intel's core types: each has performance counters of its own, below /sys/devices"""

_FREQUENCY = "cpufreq/cpuinfo_max_freq"
"""a CPU's highest frequency, kHz"""

_SHALLOWEST = "POLL"
"""name of the first idle state, in which a CPU polls and so executes at once; old kernels: C0"""


def read(path: Path) -> Seen:
    """Return what a tree says.

    Args:
        path: `/` for this machine; a folder with `sys` in it, or one such as /sys; or a tar archive of it.

    Raises:
        HeddleError: there is no such tree, or its files are not Linux's.
    """
    with _unpacked(path) as root:
        return _Tree(root, path.name or "/sys").seen()


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Give the folder in which `sys` is."""
    if path.is_dir():
        yield _root(path, path)
        return
    with tempfile.TemporaryDirectory(prefix="heddle-sys-") as name:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(name, filter=_harmless)  # noqa: S202 (the filter is tarfile's own, and stricter)
        except (tarfile.TarError, EOFError) as error:
            raise HeddleError(f"{path}: neither a folder, an lstopo file (.xml), nor a tar archive: {error}") from error
        except OSError as error:
            raise HeddleError(f"{path}: {error.strerror or error}") from error
        yield _root(Path(name), path)


def _harmless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Return what to unpack: files and folders, not the links of /sys, of which none is needed."""
    return tarfile.data_filter(member, path) if member.isreg() or member.isdir() else None


def _root(folder: Path, given: Path) -> Path:
    """Return the folder in which `sys` is: this one, that above it, or the only one below."""
    below = [path for path in folder.iterdir() if path.is_dir()]
    for path in (folder, folder.parent, *(below if len(below) == 1 else [])):
        if (path / _CPUS).is_dir():
            return path
    raise HeddleError(f"{given}: it has no {_CPUS}: name a copy of /sys, such as hwloc-gather-topology makes")


class _Tree:
    """One tree."""

    def __init__(self, root: Path, what: str) -> None:
        self._root = root
        self._what = what
        self._online = self._find_online()

    def seen(self) -> Seen:
        """Return all that the tree says."""
        cores = numbered(self._core(cpu) for cpu in self._online)
        packages = numbered(self._package(cpu) for cpu in self._online)
        llcs = numbered(self._llc(cpu) for cpu in self._online)
        nodes = self._nodes()
        kind_of, kinds = self._kinds()
        about = self._processor()
        return Seen(
            source=self._what,
            cpus=[
                SeenCpu(
                    number=cpu,
                    package=packages[self._package(cpu)],
                    llc=llcs[self._llc(cpu)],
                    core=cores[self._core(cpu)],
                    node=next((node for node, cpus in nodes.items() if cpu in cpus), min(nodes, default=0)),
                    kind=kind_of.get(cpu, ""),
                )
                for cpu in self._online
            ],
            distances=self._distances(nodes),
            kinds=kinds,
            idle=self._idle(),
            mwait=self._mwait(),
            memory_mib=self._memory_mib(),
            caches=self._cache_size(),
            model=" ".join(about.get("model name", about.get("cpu model", "")).split()),
            x86="vendor_id" in about and "flags" in about if about else True,
            virtual="hypervisor" in about.get("flags", "").split(),
            remarks=self._remarks(nodes),
        )

    def _text(self, path: str | Path) -> str:
        """Return a file's text, empty if it is missing or cannot be read."""
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace").strip(" \n\0")
        except OSError:
            return ""

    def _number(self, path: str | Path) -> int | None:
        text = self._text(path)
        return int(text) if text.isdecimal() else None

    def _cpus(self, path: str) -> frozenset[int]:
        """Return the online CPUs of a list or, where that is missing, of the mask that old kernels have instead.

        Args:
            path: of the list.

        Raises:
            HeddleError: it is neither list nor mask.
        """
        mask = path.removesuffix("_list") if "/topology/" in path else f"{path.removesuffix('list')}map"
        try:
            found = cpu_list(self._text(path)) or cpu_mask(self._text(mask) or "0")
        except HeddleError as error:
            raise HeddleError(f"{self._root / path}: {error}") from error
        return frozenset(found & self._online)

    def _find_online(self) -> set[int]:
        numbers = {
            int(match[1])
            for folder in (self._root / _CPUS).iterdir()
            if (match := re.fullmatch(r"cpu(\d+)", folder.name)) and (folder / "topology").is_dir()
        }
        if text := self._text(f"{_CPUS}/online"):
            numbers &= cpu_list(text)
        online = {cpu for cpu in numbers if self._text(f"{_CPUS}/cpu{cpu}/online") != "0"}
        if not online:
            raise HeddleError(f"{self._root / _CPUS}: no CPU has a topology there")
        return online

    def _core(self, cpu: int) -> frozenset[int]:
        topology = f"{_CPUS}/cpu{cpu}/topology"
        return (
            self._cpus(f"{topology}/core_cpus_list")
            or self._cpus(f"{topology}/thread_siblings_list")
            or frozenset({cpu})
        )

    def _package(self, cpu: int) -> frozenset[int]:
        topology = f"{_CPUS}/cpu{cpu}/topology"
        found = self._cpus(f"{topology}/package_cpus_list") or self._cpus(f"{topology}/core_siblings_list")
        return found or frozenset(self._online)

    def _llc(self, cpu: int) -> frozenset[int]:
        """Return the CPUs that share the last level of cache, or the package where none is described."""
        levels = {
            level: folder
            for folder in sorted((self._root / f"{_CPUS}/cpu{cpu}/cache").glob("index*"))
            if self._text(folder / "type") != "Instruction" and (level := self._number(folder / "level")) is not None
        }
        last = levels.get(max(levels, default=0))
        found = last and self._cpus(str(last.relative_to(self._root) / "shared_cpu_list"))
        return found or self._package(cpu)

    def _cache_size(self) -> str:
        folders = sorted((self._root / f"{_CPUS}/cpu{min(self._online)}/cache").glob("index*"))
        sizes = {self._text(f / "level"): self._text(f / "size") for f in folders}
        level = max(sizes, default="")
        return f"L{level} of {sizes[level]}" if level and sizes[level] else ""

    def _nodes(self) -> dict[int, frozenset[int]]:
        """Return the online CPUs of each node that has some."""
        nodes = {
            int(match[1]): self._cpus(f"{_NODES}/{folder.name}/cpulist")
            for folder in (self._root / _NODES).glob("node*")
            if (match := re.fullmatch(r"node(\d+)", folder.name))
        }
        return {node: cpus for node, cpus in sorted(nodes.items()) if cpus}

    def _node_numbers(self) -> list[int]:
        folders = (re.fullmatch(r"node(\d+)", folder.name) for folder in (self._root / _NODES).glob("node*"))
        return sorted(int(match[1]) for match in folders if match)

    def _distances(self, nodes: dict[int, frozenset[int]]) -> dict[int, dict[int, int]]:
        """Return the distances between nodes with CPUs; a row lists all nodes that are online."""
        everyone = self._node_numbers()
        rows = {node: [int(word) for word in self._text(f"{_NODES}/node{node}/distance").split()] for node in nodes}
        if any(len(row) != len(everyone) for row in rows.values()):
            return {}
        return {here: {there: row[everyone.index(there)] for there in nodes} for here, row in rows.items()}

    def _kinds(self) -> tuple[dict[int, str], dict[str, Kind]]:
        """Return the kind of each CPU, and the kinds; empty where all are alike.

        Intel's types of cores come first, then the kernel's own ranking, then what firmware calls nominal, then the
        highest frequencies.
        """
        kind_of = {cpu: name for pmu, name in _TYPES.items() for cpu in self._type_cpus(pmu)}
        if kind_of.keys() == self._online and len(set(kind_of.values())) > 1:
            return kind_of, {name: self._kind(name, kind_of) for name in set(kind_of.values())}
        if capacities := self._ranks("cpu_capacity"):
            return kinds_of(capacities, "read from cpu_capacity")
        kind_of, kinds = kinds_of(self._ranks("acpi_cppc/nominal_perf"), "")
        if kinds:
            return kind_of, {name: self._kind(name, kind_of) for name in kinds}
        return kinds_of(self._ranks(_FREQUENCY), f"read from {_FREQUENCY}")

    def _type_cpus(self, pmu: str) -> set[int]:
        return cpu_list(self._text(f"sys/devices/{pmu}/cpus")) & self._online

    def _ranks(self, file: str) -> dict[int, float]:
        """Return the number that a file has for each CPU; empty unless all CPUs have it."""
        found = {cpu: self._number(f"{_CPUS}/cpu{cpu}/{file}") for cpu in self._online}
        ranks = {cpu: float(rank) for cpu, rank in found.items() if rank}
        return ranks if ranks.keys() == self._online else {}

    def _kind(self, name: str, kind_of: dict[int, str]) -> Kind:
        for file in ("cpu_capacity", "acpi_cppc/highest_perf", _FREQUENCY):
            ranks = self._ranks(file)
            if len(set(ranks.values())) > 1:
                rank = statistics.fmean(ranks[cpu] for cpu, kind in kind_of.items() if kind == name)
                return Kind(name=name, rank=rank, source=f"read from {file}")
        return Kind(name=name, order=-KINDS.index(name) if name in KINDS else -len(KINDS))

    def _idle_folders(self) -> list[Path]:
        folder = self._root / f"{_CPUS}/cpu{min(self._online)}/cpuidle"
        return sorted(folder.glob("state*"), key=lambda state: int(state.name.removeprefix("state") or 0))

    def _idle(self) -> list[IdleState]:
        """Return the first CPU's idle states; the first is entered at once, and of equal residencies the deepest."""
        states: list[IdleState] = []
        for folder in self._idle_folders():
            exit_us, residency_us = self._number(folder / "latency"), self._number(folder / "residency")
            if self._text(folder / "name") in (_SHALLOWEST, "C0") or exit_us is None:
                continue
            if residency_us is None:  # before Linux 4.17
                residency_us = 3 * exit_us
            residency_us = residency_us if states else 0
            states = [state for state in states if state.residency_us < residency_us]
            states.append(IdleState(residency_us=min(residency_us, 1_000_000), exit_us=min(exit_us, 10_000)))
        return states

    def _mwait(self) -> bool | None:
        texts = [self._text(folder / "desc") for folder in self._idle_folders()]
        return any("MWAIT" in text for text in texts) if len(texts) > 1 else None

    def _memory_mib(self) -> int | None:
        match = re.search(r"^MemTotal:\s+(\d+) kB", self._text("proc/meminfo"), re.MULTILINE)
        return int(match[1]) // 1024 if match else None

    def _processor(self) -> dict[str, str]:
        """Return the first paragraph of /proc/cpuinfo."""
        first = self._text("proc/cpuinfo").partition("\n\n")[0]
        pairs = (line.partition(":") for line in first.splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs}

    def _remarks(self, nodes: dict[int, frozenset[int]]) -> list[str]:
        remarks = []
        bare = [node for node in self._node_numbers() if node not in nodes]
        if bare:
            remarks.append(f"{units.counted(len(bare), 'node')} without a CPU: left out")
        if text := self._text(f"{_CPUS}/offline"):
            remarks.append(f"offline CPUs: left out ({text})")
        return remarks
