"""Programs that the image lacks, in a guest: the host's with its library and its data, and a Debian package's."""

import subprocess
from pathlib import Path

import pytest

from heddle_lab import kernels, machine, variant, vm
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.workload import Metric, Workload

LIBRARY = "int answer(void) { return 42; }"
PROGRAM = """
#include <stdio.h>
int answer(void);
int main(int count, char **names)
{
    char line[64] = "";
    FILE *file = fopen(names[count - 1], "r");
    printf("%d %s", answer(), file ? fgets(line, sizeof(line), file) : "no file");
    return 0;
}
"""


def build(folder: Path) -> Path:
    """Return a program that reads a file, linked with a library that no image has."""
    library, program = folder / "libanswer.so.1", folder / "asker"
    gcc = ["gcc", "-xc", "-"]
    subprocess.run(
        [*gcc, "-shared", f"-Wl,-soname,{library.name}", "-o", library], input=LIBRARY, text=True, check=True
    )
    link = ["-xnone", library, f"-Wl,-rpath,{folder}"]
    subprocess.run([*gcc, *link, "-o", program], input=PROGRAM, text=True, check=True)
    return program


def test_programs_of_the_host_and_of_a_package_run(kernel: str, tmp_path: Path) -> None:
    program, data = build(tmp_path), tmp_path / "data"
    data.write_text("from a file")
    load = Workload(
        name="test",
        summary="",
        source="",
        packages=["bc"],
        files=[str(program), f"{data}:/srv/it/"],
        steps=[
            {"name": "host", "argv": ["asker", "/srv/it/data"]},
            {"name": "package", "argv": ["bc"], "stdin": "2^100\n\n"},
        ],
        metrics=[Metric(name="time", step="host", unit="ns", better="lower")],
    )
    cell = Cell(
        machine=machine.load("smp-4"),
        kernel=kernels.find(kernel),
        contestant=variant.of_scheduler("scx_heddle"),
        workload=load,
        params={},
        seed=1,
    )
    results = vm.run(cell.guest(), cold=True).check()
    assert results.step("host").stdout == "42 from a file"
    assert results.step("package").stdout == "1267650600228229401496703205376\n"


def test_a_package_that_debian_has_not_is_named() -> None:
    load = Workload(
        name="test",
        summary="",
        source="",
        packages=["no-such-package"],
        steps=[{"name": "step", "argv": ["true"]}],
        metrics=[Metric(name="time", step="step", unit="ns", better="lower")],
    )
    with pytest.raises(HeddleError, match="packages no-such-package: no package no-such-package in the pinned suites"):
        load.userland()
