"""`heddle machine`: topologies of real machines become machine files that load, and say in what they differ."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle_lab import machine
from heddle_lab.cli import cli
from heddle_lab.errors import HeddleError
from heddle_lab.hardware import machinefile
from heddle_lab.machine import Machine

HWLOC = Path(__file__).parent / "hwloc"

SHAPES = {
    # file: sockets, LLCs, cores, threads, nodes, then each class: cores, threads, speed
    "24em64t-2n6c2t-pci.xml": (2, 2, 6, 2, 2),
    "Intel-Core-2xXeon-E5345.xml": (2, 4, 2, 1, 1),
    "Intel-RaptorLake-Corei7-1370P.xml": (1, 1, 14, 2, 1, (6, 2, 100), (8, 1, 60)),
    "AMD-1Ah-Zen5StrixPoint-RyzenAI9HX370.xml": (1, 1, 12, 2, 1, (4, 2, 100), (8, 2, 60)),
    "20em64t-hybrid-1p6c2t+2ca4co1t.tar.bz2": (1, 1, 14, 2, 1, (6, 2, 100), (8, 1, 60)),
    "16em64t-4s2c2t-offlines.tar.bz2": (4, 4, 2, 2, 1),
}
REMARKS = {
    "AMD-1Ah-Zen5StrixPoint-RyzenAI9HX370.xml": "2 LLCs with different kinds of cores: 1 LLC with all kinds here",
    "16em64t-4s2c2t-offlines.tar.bz2": "cores with 1 and 2 threads: all have 2 here",
    "24em64t-2n6c2t-pci.xml": "CPUs 0, 12 are threads of one core: the guest numbers these one after the other",
}


def written(source: Path, tmp_path: Path, *options: str) -> tuple[Machine, str]:
    """Run the command; return the machine and what it said of it."""
    out = tmp_path / "box.toml"
    result = CliRunner().invoke(cli, ["machine", "--from", str(source), "--out", str(out), *options])
    assert result.exception is None, result.exception
    return machine.load(str(out)), out.read_text()


@pytest.mark.parametrize("name", SHAPES)
def test_a_real_topology_becomes_a_machine_file(name: str, tmp_path: Path) -> None:
    box, text = written(HWLOC / name, tmp_path)
    top = box.topology
    classes = tuple((kind.cores, kind.threads, kind.speed) for kind in top.classes)
    assert (top.sockets, top.llcs, top.cores, top.threads, top.nodes, *classes) == SHAPES[name]
    assert f"#   {REMARKS[name]}" in text.splitlines() if name in REMARKS else "What differs" not in text


@pytest.mark.parametrize("name", SHAPES)
def test_each_value_says_where_it_comes_from(name: str, tmp_path: Path) -> None:
    _, text = written(HWLOC / name, tmp_path)
    values = [line for line in text.splitlines() if re.match(r"\w+ = [\d\[tf]", line) and not line.endswith("[")]
    assert len(values) > 10
    for line in values:
        assert re.search(r"# (read from|assumed|as|the machine's unit)", line), line


def test_distances_are_those_of_the_file(tmp_path: Path) -> None:
    box, _ = written(HWLOC / "24em64t-2n6c2t-pci.xml", tmp_path)
    assert box.topology.distances == [[10, 20], [20, 10]]


@pytest.mark.parametrize(("most", "expected"), [(255, (20, 24)), (12, (12, 12)), (2, (2, 2)), (1, (1, 1))])
def test_a_machine_can_be_shrunk_and_says_so(most: int, expected: tuple[int, int], tmp_path: Path) -> None:
    for name, cpus in zip(("Intel-RaptorLake-Corei7-1370P.xml", "24em64t-2n6c2t-pci.xml"), expected, strict=True):
        box, text = written(HWLOC / name, tmp_path, "--scale", str(most))
        assert box.cpus <= cpus
        assert box.cpus > cpus / 2
        assert ("shrunk to" in text) == (most < 24 and cpus == most)


def large(tmp_path: Path, cores: int = 12) -> Path:
    """Write 4 packages and nodes of 4 L3 caches with some cores of 2 threads: 384 CPUs by default."""
    each = 2 * cores

    def mask(first: int, number: int) -> str:
        text = f"{((1 << number) - 1) << first:0256x}"
        return ",".join(f"0x{text[i : i + 8]}" for i in range(0, len(text), 8))

    rows = ['<?xml version="1.0"?><topology version="3.0"><object type="Machine" os_index="0">']
    for package in range(4):
        rows.append(f'<object type="Package" os_index="{package}" cpuset="{mask(package * 4 * each, 4 * each)}">')
        rows.append(f'<object type="NUMANode" os_index="{package}" cpuset="{mask(package * 4 * each, 4 * each)}"/>')
        for llc in range(package * 4, package * 4 + 4):
            rows.append(f'<object type="L3Cache" depth="3" cache_type="0" cpuset="{mask(llc * each, each)}">')
            for core in range(llc * cores, (llc + 1) * cores):
                rows.append(f'<object type="Core" os_index="{core}" cpuset="{mask(core * 2, 2)}">')
                rows += [
                    f'<object type="PU" os_index="{core * 2 + n}" cpuset="{mask(core * 2 + n, 1)}"/>' for n in (0, 1)
                ]
                rows.append("</object>")
            rows.append("</object>")
        rows.append("</object>")
    path = tmp_path / "large.xml"
    path.write_text("".join([*rows, "</object></topology>"]))
    return path


def test_what_is_too_large_is_refused_or_shrunk_in_shape(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"^640 CPUs, and at most 384 are possible: .* --scale 384$"):
        machinefile.write(machinefile.read(large(tmp_path, cores=20)))
    box, _ = written(large(tmp_path), tmp_path, "--scale", "255")
    top = box.topology
    assert (top.sockets, top.llcs, top.cores, top.threads, top.nodes) == (4, 16, 7, 2, 4)
    assert top.distances[0] == [10, 20, 20, 20]


def test_idle_states_are_those_of_cpuidle(tmp_path: Path) -> None:
    states = {"POLL": (0, 0), "C1": (2, 2), "C1E": (10, 20), "C6": (133, 600)}
    tree = plain(tmp_path)
    for number, (name, (latency, residency)) in enumerate(states.items()):
        folder = tree / f"sys/devices/system/cpu/cpu0/cpuidle/state{number}"
        folder.mkdir(parents=True)
        desc = "CPUIDLE CORE POLL IDLE" if name == "POLL" else "MWAIT 0x00"
        for file, content in (("name", name), ("latency", latency), ("residency", residency), ("desc", desc)):
            (folder / file).write_text(f"{content}\n")
    box, _ = written(tree, tmp_path)
    assert [(state.residency_us, state.exit_us) for state in box.costs.idle] == [(0, 2), (20, 10), (600, 133)]
    assert box.costs.mwait


def plain(tmp_path: Path) -> Path:
    """Write a tree of two CPUs without caches."""
    tree = tmp_path / "tree"
    for cpu in range(2):
        topology = tree / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        for file, content in (("thread_siblings", f"{1 << cpu:x}"), ("core_siblings", "3")):
            (topology / file).write_text(f"{content}\n")
    return tree


def test_core_types_of_intel_are_classes(tmp_path: Path) -> None:
    tree = plain(tmp_path)
    for cpu, (pmu, frequency) in enumerate((("cpu_core", 5_000_000), ("cpu_atom", 3_500_000))):
        for file, content in (
            (f"sys/devices/{pmu}/cpus", cpu),
            (f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", frequency),
        ):
            (tree / file).parent.mkdir(parents=True)
            (tree / file).write_text(f"{content}\n")
    box, text = written(tree, tmp_path)
    assert [(kind.name, kind.cores, kind.speed) for kind in box.topology.classes] == [("P", 1, 100), ("E", 1, 70)]
    assert "read from cpufreq/cpuinfo_max_freq" in text


def test_this_machine_has_a_file() -> None:
    result = CliRunner().invoke(cli, ["machine", "--scale", "8"])
    assert result.exception is None
    assert tomllib.loads(result.stdout)["topology"]["cores"] >= 1


BROKEN = {
    "empty.xml": ("", "not the XML of lstopo: no element found"),
    "other.xml": ("<html/>", "not the XML of lstopo: it has no <topology>"),
    "bomb.xml": ('<!DOCTYPE a [<!ENTITY b "c">]><topology>&b;</topology>', "not the XML of lstopo: EntitiesForbidden"),
    "cpuless.xml": ('<topology><object type="Machine"/></topology>', "it has no PU"),
    "mask.xml": ('<topology><object type="Core" cpuset="0xzz"/><object type="PU" os_index="0"/></topology>', "mask"),
    "text.tar": ("no archive", "neither a folder, an lstopo file (.xml), nor a tar archive"),
    "missing.xml": (None, "no such file or folder"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_topology_is_one_line(name: str, tmp_path: Path) -> None:
    content, complaint = BROKEN[name]
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(HeddleError) as error:
        machinefile.read(path)
    assert complaint in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
