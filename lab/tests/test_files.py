"""The shipped TOML files load, and wrong ones are refused with a line that names file and key."""

import re
from pathlib import Path

import pytest

from heddle_lab import experiment, kernels, machine, paths, scheduler, tomlfile, workload
from heddle_lab.errors import HeddleError

MACHINE = """
name = "box"
summary = "a box"
source = "none"
memory_mib = 1024
[topology]
cores = 4
"""

CLASS = '[[topology.classes]]\nname = "P"\ncores = 2\nthreads = 1\nspeed = 100\n'
CACHES = "[caches]\nfootprint_kib = 64\nmisses = 4\ncore_ns = 10\n"


@pytest.mark.parametrize("name", tomlfile.names(paths.MACHINES))
def test_shipped_machines(name: str) -> None:
    loaded = machine.load(name)
    assert loaded.name == name


@pytest.mark.parametrize("name", tomlfile.names(paths.WORKLOADS))
def test_shipped_workloads_fit_every_machine(name: str) -> None:
    load = workload.load(name)
    assert load.name == name
    for box in map(machine.load, tomlfile.names(paths.MACHINES)):
        assert load.job_steps(load.parameters({}), box, seed=1)


@pytest.mark.parametrize("name", tomlfile.names(paths.EXPERIMENTS))
def test_shipped_experiments_name_what_exists(name: str) -> None:
    loaded = experiment.load(name)
    assert loaded.name == name
    assert all(machine.load(box) for box in loaded.machines)
    for point in loaded.workloads:
        load = workload.load(point.name)
        assert all(load.parameters(params) for params in point.sweep())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("cores = 4", "cores = 0"), "topology.cores: Input should be greater than or equal to 1"),
        (("cores = 4", "cores = 4\ncoers = 5"), "topology.coers: unknown key"),
        (("cores = 4", "cores = 600"), "topology: 600 CPUs; at most 384"),
        (('name = "box"\n', ""), "missing: name"),
        (('name = "box"', 'name = "A Box"'), "name: String should match"),
        (("memory_mib = 1024", 'memory_mib = "plenty"'), "memory_mib: "),
        (("memory_mib = 1024", "memory_mib = 1024\nspeed = 3"), "speed: unknown key; known: name, summary"),
        (("[topology]", "[topology"), "Expected ']'"),
        (("cores = 4", f"cores = 4\n{CLASS}"), "topology: the cores of the classes do not add up to cores = 4"),
        (("cores = 4", f"cores = 2\nthreads = 2\n{CLASS}"), "topology: the largest threads of a class is not threads"),
        (("cores = 4", "cores = 4\ndistances = [[10, 20], [20, 10]]"), "topology: distances is not a square"),
        (("cores = 4", "cores = 4\ndies = 2\ndistances = [[10, 20]]"), "topology: distances is not a square"),
        (("cores = 4", f"cores = 4\ndies = 2\n{CACHES}"), "caches.llc_ns goes with several LLCs in a node"),
        (("cores = 4", f"cores = 4\n{CACHES}node_ns = 5"), "caches.node_ns goes with several nodes"),
    ],
)
def test_wrong_machine(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    path = tmp_path / "box.toml"
    path.write_text(MACHINE.replace(*change))
    with pytest.raises(HeddleError) as caught:
        machine.load(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_unknown_names_list_the_known_ones(cache: Path) -> None:
    assert cache
    for find, known in (
        (machine.load, "smp-4"),
        (workload.load, "hackbench"),
        (experiment.load, "demo"),
        (kernels.find, "7.3"),
        (scheduler.parse, "eevdf, scx_heddle"),
    ):
        with pytest.raises(HeddleError, match=f"unknown [a-z]+ 'nosuch'; known: .*{known}"):
            find("nosuch")


def arguments(path: Path, text: str) -> str:
    """Return the command line of a machine file."""
    path.write_text(text)
    return " ".join(machine.load(str(path)).qemu_arguments(kernels.find("7.3")))


def test_machine_becomes_arguments(tmp_path: Path, cache: Path) -> None:
    assert cache
    path = tmp_path / "box.toml"
    text = MACHINE.replace("cores = 4", "sockets = 2\ndies = 3\ncores = 4\nthreads = 2")
    line = arguments(path, text + "[clock]\nspeed = 60\nsmt = 70\n")
    assert "-smp cpus=48,sockets=2,dies=3,cores=4,threads=2 -m 1024M " in line
    assert "parallel=on,quantum=1000,smt=70,speed=60,kernel-speed=60," in line
    assert (machine.load(str(path)).cpus, machine.load(str(path)).topology.llcs) == (48, 6)


def test_nodes_become_arguments(tmp_path: Path, cache: Path) -> None:
    assert cache
    line = arguments(tmp_path / "box.toml", MACHINE + "dies = 2\ndistances = [[10, 21], [31, 10]]\n")
    assert "-m 1024M -object memory-backend-ram,id=node0,size=512M -numa node,nodeid=0,memdev=node0 " in line
    assert "-numa cpu,node-id=1,socket-id=0,die-id=1 " in line
    assert "-numa dist,src=1,dst=0,val=31 " in line


def test_cores_without_a_sibling_leave_a_slot_free(tmp_path: Path, cache: Path) -> None:
    assert cache
    classes = "".join(
        f'[[topology.classes]]\nname = "{name}"\ncores = 2\nthreads = {threads}\nspeed = {speed}\n'
        for name, threads, speed in (("P", 2, 100), ("E", 1, 60))
    )
    line = arguments(tmp_path / "box.toml", MACHINE + "threads = 2\n" + classes)
    assert line.startswith("-smp cpus=1,maxcpus=8,sockets=1,dies=1,cores=4,threads=2 -global ")
    assert "-global max-x86_64-cpu.hwp-highest=50 " in line
    places = re.findall(r"-device max-x86_64-cpu,socket-id=0,core-id=(\d),thread-id=(\d),hwp-highest=(\d+)", line)
    assert places == [("0", "1", "50"), ("1", "0", "50"), ("1", "1", "50"), ("2", "0", "30"), ("3", "0", "30")]
    assert ",speed=100:100:100:100:60:100:60,kernel-speed=100:100:100:100:60:100:60," in line
    assert machine.load(str(tmp_path / "box.toml")).kernel_arguments() == "possible_cpus=6"


def test_caches_need_a_kernel_that_tells_its_tasks(tmp_path: Path, cache: Path) -> None:
    assert cache
    with pytest.raises(HeddleError, match="vmlinuz: packed in an unknown way: cannot find the kernel's current_task"):
        arguments(tmp_path / "box.toml", MACHINE + CACHES)


def test_kernel_by_path(tmp_path: Path, cache: Path) -> None:
    found = kernels.find("7.3")
    image = tmp_path / "bzImage"
    image.write_bytes(found.image.read_bytes())
    with pytest.raises(HeddleError, match=r"as config-7\.3\.0-test"):
        kernels.find(str(image))
    (tmp_path / "config-7.3.0-test").write_text("CONFIG_HZ=1000\n")
    own = kernels.find(str(image))
    assert (own.release, own.hz) == ("7.3.0-test", 1000)
    image.write_bytes(bytes(1000))
    with pytest.raises(HeddleError, match="not an x86 bzImage"):
        kernels.find(str(image))
    assert cache
