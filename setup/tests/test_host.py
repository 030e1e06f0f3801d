"""Host packages: what is missing is installed as root, or the line that would do it is named."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from setup import pins
from setup.apt import Apt
from setup.context import Context
from setup.paths import Paths
from setup.report import Progress, SetupError
from setup.stages import host

PINS = Path(host.__file__).parents[1] / "pins.toml"

# Its session is in the sixth field (proc_pid_stat(5)).
SUDO = """\
read -r pid name state parent group session rest < /proc/$$/stat
echo "session $session" >> "${0%/*}/../log"
shift
exec "$@"
"""

Programs = Callable[..., Path]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    paths, found, progress = Paths(tmp_path, tmp_path / "cache"), pins.load(PINS), Progress()
    return Context(
        "host", paths, found, Apt(paths, found.debian, progress, refresh=False), progress
    )


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Makes scripts that stand for the programs of a user's host; returns their log.

    dpkg knows of all packages but gcc.
    """
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    log.touch()
    known = "\n".join(
        f"installed {name}" for name in pins.load(PINS).host_packages if name != "gcc"
    )

    def make(**scripts: str) -> Path:
        scripts |= {
            "apt-get": f'echo "apt-get $*" >> {log}',
            "dpkg-query": f"echo '{known}'; exit 1",
        }
        for name, script in scripts.items():
            file = folder / name
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)
        return log

    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return make


def test_sudo_keeps_the_terminal_on_which_it_asks(context: Context, programs: Programs) -> None:
    """Its session has the terminal: in one of its own it could read no password."""
    log = programs(sudo=SUDO)
    host.run(context)
    lines = log.read_text().splitlines()
    sessions = [line.split()[-1] for line in lines if line.startswith("session")]
    assert set(sessions) == {str(os.getsid(0))}
    asked = [line for line in lines if line.startswith("apt-get")]
    assert asked[0] == "apt-get --version"
    assert asked[-1].endswith("install -y --no-install-recommends --no-upgrade --no-remove gcc")


def test_a_sudo_that_refuses_is_one_line_with_the_mend(
    context: Context, programs: Programs
) -> None:
    log = programs(sudo="echo 'sudo: a password is required' >&2; exit 1")
    with pytest.raises(SetupError) as caught:
        host.run(context)
    assert (
        str(caught.value) == "sudo runs no apt-get for this user: run apt-get install gcc as root"
    )
    assert log.read_text() == ""


def test_without_sudo_the_mend_is_named(context: Context, programs: Programs) -> None:
    programs()
    with pytest.raises(SetupError) as caught:
        host.run(context)
    assert str(caught.value) == "neither root nor sudo: run apt-get install gcc as root"
