"""A machine of more CPUs than x86 serves without an interrupt remapper. It boots for minutes: `make stress`."""

from pathlib import Path

from heddle_lab import kernels, machine, vm
from heddle_lab.hardware import machinefile
from heddle_lab.job import Job, Step
from tests.test_hardware import large


def test_a_machine_of_more_than_255_cpus_boots(tmp_path: Path) -> None:
    text, _ = machinefile.write(machinefile.read(large(tmp_path)), "large", 288)
    (tmp_path / "large.toml").write_text(text)
    box = machine.load(str(tmp_path / "large.toml"))
    assert box.cpus == 288
    job = Job(steps=[Step(name="work", argv=["hackbench", "-g", "1", "-f", "2", "-l", "10"])])
    results = vm.run(vm.Guest(machine=box, kernel=kernels.find("7.3"), job=job)).check()
    [ready] = results.of("ready")
    seen = [(cpu["core"], cpu["llc"], cpu["node"]) for cpu in ready["topology"]]
    assert seen == [(cpu.core, cpu.llc, cpu.node) for cpu in box.layout()]
