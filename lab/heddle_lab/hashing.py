"""Hashes of files and of plain data: what names a cell and what a report states as provenance."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from heddle_lab.errors import HeddleError


def of_data(data: Any) -> str:
    """Return the hex SHA-256 of JSON-able data, independent of the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    """Return the hex SHA-256 of a file's content.

    Raises:
        HeddleError: the file cannot be read.
    """
    try:
        status = path.stat()
        return _of_file(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}") from error


@lru_cache(maxsize=256)
def _of_file(path: Path, _mtime_ns: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
