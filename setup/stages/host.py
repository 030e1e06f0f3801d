"""Host packages: those that are missing, by the host's own apt, from its own suites."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from .. import process
from ..context import Context
from ..report import SetupError


def run(context: Context) -> None:
    """Install what pins.toml lists and the host lacks; upgrade and remove nothing."""
    wanted = context.pins.host_packages
    if platform.machine() != "x86_64":
        raise SetupError(f"this host is {platform.machine()}; guests are built for x86_64 only")
    if not (shutil.which("apt-get") and shutil.which("dpkg-query")):
        lacking = [name for name, probe in wanted.items() if probe and not _has(probe)]
        raise SetupError(
            "this host is not Debian: set-up needs apt-get and dpkg (to fetch kernels and "
            f"compilers), and does not find {', '.join(lacking) or 'only those'}; "
            "a Debian 12 or 13 container will do"
        )
    missing = sorted(set(wanted) - _installed(list(wanted)))
    if missing:
        _install(context, missing)


def _has(probe: str) -> bool:
    """Whether a host without dpkg has PROBE: a command, or `pc:` and a pkg-config module."""
    if probe.startswith("pc:"):
        return process.output(["pkg-config", "--exists", probe[3:]]) is not None
    return shutil.which(probe) is not None


def _installed(names: list[str]) -> set[str]:
    words = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *names]
    # It fails if it does not know one name, and still tells of the others.
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name for status, name in lines if status == "installed"}


def _install(context: Context, missing: list[str]) -> None:
    context.say(f"installing {' '.join(missing)}")
    prefix = _as_root(missing)
    terminal = bool(prefix)  # sudo may ask each time
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    install = [*prefix, "apt-get", "install", "-y", "--no-install-recommends", "--no-upgrade"]
    # Nothing that is installed may go: without --no-remove apt would solve a conflict so.
    install += ["--no-remove", *missing]
    if any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        try:
            context.run(install, env=env, terminal=terminal)
        except SetupError:
            context.say("the host's package lists are out of date")
        else:
            return
    context.run([*prefix, "apt-get", "update"], env=env, terminal=terminal)
    context.run(install, env=env, terminal=terminal)


def _as_root(missing: list[str]) -> list[str]:
    """What to put before apt-get; asks for the password that sudo wants, if it wants one."""
    if os.geteuid() == 0:
        return []
    mend = f"run apt-get install {' '.join(missing)} as root"
    if not shutil.which("sudo"):
        raise SetupError(f"neither root nor sudo: {mend}")
    sudo = ["sudo", "--preserve-env=DEBIAN_FRONTEND"]
    # Of apt-get, not of `sudo -v`: that asks for a password even where apt-get needs none.
    if process.output([*sudo, "apt-get", "--version"]) is None:
        raise SetupError(f"sudo runs no apt-get for this user: {mend}")
    return sudo
