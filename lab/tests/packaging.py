"""The scheduler's Debian package, for tests."""

import subprocess
import sys
from pathlib import Path

from heddle_lab import paths

PACKAGING = paths.REPOSITORY / "scheduler/packaging"


def build() -> Path:
    """Build the package as `make deb` does."""
    argv = [sys.executable, "-m", "setup", "deb"]
    subprocess.run(argv, cwd=paths.REPOSITORY, check=True, capture_output=True)
    [package] = (paths.REPOSITORY / "out").glob("scx-heddle_*.deb")
    return package


def unit() -> dict[str, str]:
    """Return the settings of the systemd unit."""
    lines = (PACKAGING / "scx_heddle.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
