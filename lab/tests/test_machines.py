"""Every shipped machine, booted: the guest must see what the file says.

The largest take a minute of host time each, so there is one boot per machine, on one kernel.
"""

from functools import cache

import pytest

from heddle_lab import kernels, machine, paths, tomlfile, vm
from heddle_lab.job import Job, Read, Step
from heddle_lab.results import Results

pytestmark = pytest.mark.vm

MACHINES = tomlfile.names(paths.MACHINES)
NUMA = "/sys/devices/system/node/node{}/distance"
RANK = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"
"""kHz; programs have nothing better to rank CPUs by, see scx_utils' topology"""
COUNTS = ["possible", "present", "online"]


@cache
def boot(name: str) -> Results:
    """Boot a machine with a job that reads what the kernel believes, and does a little work on all CPUs."""
    box = machine.load(name)
    steps = [Step(name=count, action=Read(path=f"/sys/devices/system/cpu/{count}")) for count in COUNTS]
    steps += [Step(name=f"node{node}", action=Read(path=NUMA.format(node))) for node in range(box.topology.nodes)]
    if box.topology.classes:
        steps += [Step(name=f"rank{n}", action=Read(path=RANK.format(n))) for n in range(box.cpus)]
        steps += [Step(name="itmt", action=Read(path="/sys/kernel/debug/x86/sched_itmt_enabled"))]
    steps += [Step(name="work", argv=["hackbench", "-g", "1", "-f", "2", "-l", "10"])]
    return vm.run(vm.Guest(machine=box, kernel=kernels.find("7.3"), job=Job(steps=steps))).check()


@pytest.mark.parametrize("name", MACHINES)
def test_the_guest_sees_the_machine_of_the_file(name: str) -> None:
    box, results = machine.load(name), boot(name)
    layout = box.layout()
    siblings = {core: [n for n, cpu in enumerate(layout) if cpu.core == core] for core in {cpu.core for cpu in layout}}
    [ready] = results.of("ready")
    assert ready["topology"] == [
        {
            "cpu": number,
            "core": cpu.core,
            "llc": cpu.llc,
            "node": cpu.node,
            "siblings": "-".join(str(n) for n in siblings[cpu.core]),
        }
        for number, cpu in enumerate(layout)
    ]
    assert {results.step(count).stdout.strip() for count in COUNTS} == {f"0-{box.cpus - 1}"}
    for node, row in enumerate(box.topology.distances):
        assert results.step(f"node{node}").stdout.split() == [str(distance) for distance in row]


@pytest.mark.parametrize("name", [name for name in MACHINES if machine.load(name).topology.classes])
def test_faster_cores_are_preferred_by_the_guests_kernel(name: str) -> None:
    """As on real hybrid processors: by intel_pstate, from what each CPU says of itself (HWP)."""
    box, results = machine.load(name), boot(name)
    fastest = max(cpu.speed for cpu in box.layout())
    for number, cpu in enumerate(box.layout()):
        assert int(results.step(f"rank{number}").stdout) == 5_000_000 * cpu.speed // fastest
    assert results.step("itmt").stdout.strip() == "Y"


@pytest.mark.parametrize("name", MACHINES)
def test_the_machine_runs_a_program(name: str) -> None:
    assert boot(name).step("work").exit == 0
