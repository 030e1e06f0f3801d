"""A folder for the files of running guests, which goes whatever ends the run: with it, or else with the next."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "heddle-run-"
_OWNER = "owner"
"""file that its run keeps locked"""


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder in the system's temporary one, and remove those that killed runs left there.

    Raises:
        OSError: the disk is full or not writable.
    """
    _sweep(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name,
        (Path(name) / _OWNER).open("w") as owner,
    ):
        fcntl.flock(owner, fcntl.LOCK_EX)
        yield Path(name)


def _sweep(parent: Path) -> None:
    for owner in parent.glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            with owner.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
        except OSError:  # it is locked: that run goes on; or another one removes it now
            continue
