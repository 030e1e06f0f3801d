"""Files that are whole or absent, whatever happens while they are written."""

import os
import tempfile
from pathlib import Path

from heddle_lab.errors import HeddleError


def read_text(path: Path) -> str:
    """Return a text file's content.

    Raises:
        HeddleError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HeddleError(f"{path}: {error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file by way of a temporary one beside it; folders are made.

    Raises:
        HeddleError: the disk is full or not writable.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by way of a temporary one beside it; folders are made.

    Raises:
        HeddleError: the disk is full or not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise HeddleError(f"cannot write {path}: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder that files can be written to, with those above it; one that is there already is no error.

    Raises:
        HeddleError: it cannot be made, or nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise HeddleError(f"cannot write to the folder {path}: {error.strerror}; name another by --out") from error


def remove(path: Path) -> None:
    """Delete a file; one that is gone already is no error.

    Raises:
        HeddleError: the folder is not writable.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HeddleError(f"cannot delete {path}: {error.strerror}") from error
