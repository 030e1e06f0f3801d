"""The shipped TOML files load, and wrong ones are refused with a line that names file and key."""

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
        (("cores = 4", "cores = 400"), "topology: 400 CPUs; at most 255"),
        (('name = "box"\n', ""), "name: Field required"),
        (('name = "box"', 'name = "A Box"'), "name: String should match"),
        (("memory_mib = 1024", 'memory_mib = "plenty"'), "memory_mib: "),
        (("memory_mib = 1024", "memory_mib = 1024\nspeed = 3"), "speed: unknown key; known: name, summary"),
        (("[topology]", "[topology"), "Expected ']'"),
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


def test_machine_becomes_arguments(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text(
        MACHINE.replace("cores = 4", "sockets = 2\ndies = 3\ncores = 4\nthreads = 2") + "[clock]\nspeed = [100, 60]\n"
    )
    box = machine.load(str(path))
    assert (box.cpus, box.topology.llcs) == (48, 6)
    arguments = box.qemu_arguments()
    assert "cpus=48,sockets=2,dies=3,cores=4,threads=2" in arguments
    assert any("quantum=10000,speed=100:60" in argument for argument in arguments)


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
