"""Unpacking Debian packages beside the host: nothing is installed, no script runs."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .report import SetupError


@contextmanager
def opened(deb: Path) -> Iterator[tarfile.TarFile]:
    """The file tree of package DEB as a stream of tar members."""
    words = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield tar
        # Read to the end, or dpkg-deb dies of a closed pipe and looks broken.
        if process.stdout:
            process.stdout.read()
    if process.returncode != 0:
        raise SetupError(f"{deb} is damaged: remove it and run again")


def unpack(deb: Path, root: Path) -> None:
    """Put the files of DEB below ROOT."""
    done = subprocess.run(
        ["dpkg-deb", "-x", str(deb), str(root)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SetupError(f"{deb} cannot be unpacked: {done.stderr.strip()}")
