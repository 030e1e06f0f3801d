"""Programs of the host in the guest: their places, the libraries that go with them, and what is refused."""

import subprocess
from pathlib import Path

import pytest

from heddle_lab import cpio, experiment, hostfiles, image, paths, payload, provenance
from heddle_lab.errors import HeddleError
from heddle_lab.experiment import Overrides

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def compiled(folder: Path, name: str, source: str, *options: str) -> Path:
    """Return a program or a library, made by the host's compiler."""
    out = folder / name
    subprocess.run(
        ["gcc", "-xc", "-", "-xnone", "-o", out, "-Wl,--no-as-needed", *options], input=source, text=True, check=True
    )
    return out


def library(folder: Path, name: str, *options: str) -> Path:
    return compiled(folder, name, f"int {name[3]}(void) {{ return 1; }}", "-shared", f"-Wl,-soname,{name}", *options)


@pytest.fixture
def program(cache: Path, tmp_path: Path) -> Path:
    """A program that needs liba.so.1, which needs libb.so.1."""
    assert cache
    found = f"-Wl,-rpath,{tmp_path}"
    inner = library(tmp_path, "libb.so.1")
    outer = library(tmp_path, "liba.so.1", found, str(inner))
    return compiled(tmp_path, "mine", "int a(void); int main(void) { return a(); }", found, str(outer))


def test_a_file_has_a_place(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.write_text("1")
    assert hostfiles.named([str(one)]) == {"/usr/local/bin/one": one}
    assert hostfiles.named([f"{one}:/data/"]) == {"/data/one": one}
    assert hostfiles.named([f"{one}:/data/other"]) == {"/data/other": one}
    assert hostfiles.named([f"{one}:/a", f"{one}:/b", f"{one}:/a"]) == {"/a": one, "/b": one}
    assert hostfiles.named([hostfiles.located("one:/a", tmp_path)]) == {"/a": one}


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    inner = tmp_path / "app" / "lib" / "x.py"
    inner.parent.mkdir(parents=True)
    inner.write_text("")
    assert hostfiles.named([f"{tmp_path}/app"]) == {"/usr/local/bin/app/lib/x.py": inner}
    assert hostfiles.named([f"{tmp_path}/app:/opt/it"]) == {"/opt/it/lib/x.py": inner}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["{0}/absent"], "files: .*/absent: no such file; write HOST or HOST:/PLACE/IN/GUEST"),
        (["{0}/x:/proc/self"], "files: .*: /proc/self is not a place for files in the guest"),
        (["{0}/x:/a/../heddle/job.json"], "/heddle/job.json is not a place"),
        (["{0}/x:/a", "{0}/y:/a"], "files: .*/x and .*/y are both to be /a in the guest"),
    ],
)
def test_a_bad_file_is_one_line(texts: list[str], said: str, tmp_path: Path) -> None:
    for name in "xy":
        (tmp_path / name).write_text(name)
    with pytest.raises(HeddleError, match=said):
        hostfiles.named([text.format(tmp_path) for text in texts])


def test_libraries_of_libraries_go_with_a_program(program: Path) -> None:
    found = hostfiles.with_libraries({"/usr/local/bin/mine": program}, (), "it")
    assert found == {
        "/usr/local/bin/mine": program,
        "/usr/lib/liba.so.1": program.parent / "liba.so.1",
        "/usr/lib/libb.so.1": program.parent / "libb.so.1",
    }


def test_a_library_that_nobody_has_is_named(program: Path) -> None:
    (program.parent / "libb.so.1").unlink()
    with pytest.raises(HeddleError, match=r"it: /.*/liba.so.1 needs libb.so.1, which neither the guest nor this host"):
        hostfiles.with_libraries({"/usr/local/bin/mine": program}, (), "it")


def test_a_program_for_newer_libraries_is_refused(program: Path, cache: Path) -> None:
    libc = {str(Path("/usr/lib/x86_64-linux-gnu") / LIBC.name): (0o755, LIBC.read_bytes())}
    (cache / "image" / "one" / "libc.cpio").write_bytes(cpio.pack(libc))
    assert "GLIBC_2.34" in image.library_versions("libc.so.6", ("libc",))
    hostfiles.with_libraries({"/mine": program}, ("libc",), "it")
    newer = program.parent / "newer"
    newer.write_bytes(program.read_bytes().replace(b"GLIBC_2.34", b"GLIBC_9.34"))
    with pytest.raises(HeddleError, match=r"it: /.*/newer needs GLIBC_9.34 of libc.so.6, newer than the guest's"):
        hostfiles.with_libraries({"/mine": newer}, ("libc",), "it")


def test_a_program_for_another_linker_is_refused(program: Path) -> None:
    other = program.parent / "other"
    other.write_bytes(program.read_bytes().replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib64/ld-linux-x86-64.so.9"))
    with pytest.raises(HeddleError, match=r"other is for the dynamic linker /lib64/ld-linux-x86-64.so.9"):
        hostfiles.with_libraries({"/mine": other}, (), "it")


def overrides(*files: str) -> Overrides:
    return Overrides(workloads=["command"], params={"command": "mine 3"}, seeds=1, files=list(files))


def test_a_file_is_part_of_its_cells_alone(program: Path) -> None:
    """A cell's name hangs on the content of the files; without files it is what it was."""
    without = [cell.key() for cell in overrides().apply(None).cells()]
    cells = overrides(str(program)).apply(None).cells()
    guest = cells[0].guest()
    assert guest.job_files["/usr/local/bin/mine"] == (0o755, program.read_bytes())
    assert set(guest.job_files) == {"/usr/local/bin/mine", "/usr/lib/liba.so.1", "/usr/lib/libb.so.1"}
    assert "files" not in overrides().apply(None).cells()[0].inputs()
    keys = [cell.key() for cell in cells]
    assert not set(keys) & set(without)
    library(program.parent, "libb.so.1", "-O2", "-g3")
    assert not set(keys) & {cell.key() for cell in cells}


def test_a_steps_program_may_be_a_file(program: Path, tmp_path: Path) -> None:
    text = (paths.WORKLOADS / "command.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text(
        text.replace('["sh", "-c", "{{ command }}"]', '["mine"]').replace("[params", 'files = ["mine"]\n[params')
    )
    cells = Overrides(workloads=[str(mine)], seeds=1).apply(None).cells()
    assert cells[0].workload.files == [str(program)]
    program.chmod(0o644)
    with pytest.raises(HeddleError, match=r"workload 'command': step 'command': .*/mine is not executable"):
        Overrides(workloads=[str(mine)], seeds=1).apply(None).cells()
    mine.write_text(mine.read_text(encoding="utf-8").replace('files = ["mine"]', ""))
    with pytest.raises(HeddleError, match=r"no program 'mine' in the guest image \(base\); name its layer in `layers`"):
        Overrides(workloads=[str(mine)], seeds=1).apply(None).cells()


def test_files_beyond_the_room_are_refused_before_anything_boots(cache: Path, tmp_path: Path) -> None:
    assert cache
    with (tmp_path / "large").open("wb") as file:
        file.truncate(payload.PART_BYTES)
    with pytest.raises(HeddleError, match="the guest is given 128 MiB of files, but has room for 127 MiB"):
        overrides(f"{tmp_path}/large").apply(None).cells()


def test_what_was_given_is_in_the_command_that_repeats_a_cell(program: Path) -> None:
    cell = overrides(str(program)).apply(None).cells()[0]
    assert provenance.of_cell(cell, ["--trace"], {})["flags"] == ["--trace", "--file", str(program)]


def test_an_experiment_may_give_files(program: Path, tmp_path: Path) -> None:
    text = (paths.EXPERIMENTS / "smoke.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine-too.toml"
    mine.write_text(f'files = ["mine:/opt/"]\n{text}')
    assert experiment.load(str(mine)).files == [f"{program}:/opt/"]
