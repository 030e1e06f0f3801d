"""`heddle machine`: a guest on the file of a real machine sees that machine, and a guest's /sys gives its file back."""

from pathlib import Path

import pytest

from heddle_lab import kernels, machine, vm
from heddle_lab.hardware import fit, machinefile
from heddle_lab.job import Job, Step
from tests.test_hardware import HWLOC

pytestmark = pytest.mark.vm

_MARK = "=== "

_PRINT = f"""
cd /
for file in sys/devices/system/cpu/{{online,cpu*/topology/{{core,package}}_cpus_list,cpu*/cpufreq/cpuinfo_max_freq}} \\
            sys/devices/system/cpu/cpu*/cache/index*/{{level,type,shared_cpu_list}} \\
            sys/devices/system/node/node*/{{cpulist,distance}} proc/meminfo; do
  [ -f "$file" ] && echo "{_MARK}$file" && cat "$file"
done
exit 0
"""


@pytest.mark.parametrize("name", ["24em64t-2n6c2t-pci.xml", "20em64t-hybrid-1p6c2t+2ca4co1t.tar.bz2"])
def test_a_guest_on_a_real_machines_file_is_that_machine(name: str, tmp_path: Path) -> None:
    text, _ = machinefile.write(machinefile.read(HWLOC / name), "real")
    (tmp_path / "real.toml").write_text(text)
    box = machine.load(str(tmp_path / "real.toml"))
    job = Job(steps=[Step(name="sys", argv=["bash", "-c", _PRINT])])
    results = vm.run(vm.Guest(machine=box, kernel=kernels.find("7.3"), job=job)).check()
    [ready] = results.of("ready")
    seen = [(cpu["core"], cpu["llc"], cpu["node"]) for cpu in ready["topology"]]
    assert seen == [(cpu.core, cpu.llc, cpu.node) for cpu in box.layout()]

    for part in results.step("sys").stdout.split(_MARK)[1:]:
        path, _, content = part.partition("\n")
        (tmp_path / "guest" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "guest" / path).write_text(content)
    again, remarks = machinefile.write(machinefile.read(tmp_path / "guest"), "again")
    (tmp_path / "again.toml").write_text(again)
    assert remarks == []
    assert machine.load(str(tmp_path / "again.toml")).topology == box.topology


def test_the_measuring_program_gives_the_same_in_two_guests() -> None:
    box = fit.small(machine.load("smp-4"))
    first, second = fit.in_guest(box), fit.in_guest(box)
    assert first == second
    assert first.keys() >= {"syscall", "fault", "switch_thread", "switch_process", "interrupt", "wake_0", "wake_1000"}
