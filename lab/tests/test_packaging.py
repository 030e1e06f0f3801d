"""The Debian package and the unit in it, as far as a host can judge them; tests/vm/test_packaging.py installs it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from heddle_lab import paths
from tests.packaging import PACKAGING, build, unit

EXPOSURE = 25
"""tenths, `systemd-analyze security`: the service needs capabilities and BPF, all else is shut"""

STALL_S = 30
"""how long the kernel lets a task wait at most, whatever one asks (SCX_WATCHDOG_MAX_TIMEOUT, kernel/sched/ext.c)"""

LOADING_S = 30
"""ample, for loading on a machine whose CPUs are all busy"""


@pytest.fixture(scope="module")
def package() -> Path:
    return build()


def run(*argv: str | Path) -> str:
    return subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=True).stdout


def test_the_package_holds_all_that_an_administrator_needs(package: Path) -> None:
    listed = {line.split()[5] for line in run("dpkg-deb", "--contents", package).splitlines()}
    assert {
        "./usr/bin/scx_heddle",
        "./usr/lib/systemd/system/scx_heddle.service",
        "./etc/default/scx_heddle",
        "./etc/scx_heddle.toml",
        "./usr/share/man/man8/scx_heddle.8.gz",
        "./usr/share/bash-completion/completions/scx_heddle",
        "./usr/share/fish/vendor_completions.d/scx_heddle.fish",
        "./usr/share/zsh/vendor-completions/_scx_heddle",
        "./usr/share/doc/scx-heddle/copyright",
        "./usr/share/doc/scx-heddle/grafana/heddle.json",
    } <= listed
    needed = run("dpkg-deb", "--field", package, "Depends")
    assert {"libc6", "libelf1"} <= {re.split(r"[ t]", one.strip())[0] for one in needed.split(",")}


def test_files_belong_to_root(package: Path) -> None:
    owners = {line.split()[1] for line in run("dpkg-deb", "--contents", package).splitlines()}
    assert owners == {"root/root"}


def test_the_manual_page_has_no_faults(package: Path, tmp_path: Path) -> None:
    run("dpkg-deb", "--extract", package, tmp_path)
    page = tmp_path / "usr/share/man/man8/scx_heddle.8.gz"
    done = subprocess.run(["man", "--warnings", "--local-file", page], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "SHARED WAKE QUEUE" in done.stdout


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """It looks for the program too: the built one stands for the installed one."""
    file = tmp_path / "scx_heddle.service"
    program = paths.REPOSITORY / "target/release/scx_heddle"
    file.write_text((PACKAGING / file.name).read_text().replace("/usr/bin/scx_heddle", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_load_that_stalls_the_scheduler_is_not_starved_for_ever() -> None:
    """Each start may end in a stall; all that are allowed have to fall into the interval, or none is ever refused."""
    settings = unit()
    round_s = STALL_S + LOADING_S + int(settings["RestartSec"])
    assert int(settings["StartLimitBurst"]) * round_s < int(settings["StartLimitIntervalSec"])


@pytest.mark.parametrize("option", ["--nosuch", "--slice-us=1"])
def test_the_service_is_not_started_again_with_a_wrong_option(option: str) -> None:
    program = paths.REPOSITORY / "target/release/scx_heddle"
    done = subprocess.run([program, option], capture_output=True, check=False)
    assert str(done.returncode) in unit()["RestartPreventExitStatus"].split()


def test_schedulers_that_exclude_this_one_stop_before_it_starts() -> None:
    settings = unit()
    assert set(settings["Conflicts"].split()) <= set(settings["After"].split())


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["configure", ""], ["daemon-reload"]),
        (["configure", "0.1.0"], ["daemon-reload", "try-restart scx_heddle.service"]),
        (["abort-upgrade", "0.2.0"], ["daemon-reload"]),
    ],
)
def test_an_upgrade_replaces_the_program_that_runs(tmp_path: Path, arguments: list[str], asked: list[str]) -> None:
    """A script stands for systemctl, of a service that does not come back: that fails no installation."""
    log = tmp_path / "log"
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >> {log}\n[ "$1" = daemon-reload ]\n')
    systemctl.chmod(0o755)
    script = (PACKAGING / "postinst").read_text().replace("/run/systemd/system", str(tmp_path))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script, "postinst", *arguments], env=environment, check=False)
    assert (done.returncode, log.read_text().splitlines()) == (0, asked)


def test_the_unit_is_hardened() -> None:
    file = PACKAGING / "scx_heddle.service"
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_unit_grants_what_the_loader_keeps() -> None:
    source = (paths.REPOSITORY / "scheduler/src/privileges.rs").read_text()
    lists = re.findall(r"(?:NEEDED|TO_RESOLVE): .*?;$", source, re.DOTALL | re.MULTILINE)
    kept = {name for found in lists for name in re.findall(r"Capability::(CAP_\w+)", found)}
    assert kept == set(unit()["CapabilityBoundingSet"].split())
