"""The store of measured cells: one file per cell, named by the hash of its inputs; compressed, for traces are long."""

from pathlib import Path

import zstandard
from pydantic import ValidationError

from heddle_lab import files
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results


class StoreError(HeddleError):
    """A result cannot be kept: the disk is full or not writable."""


class Store:
    """A folder of results; a cell that is in it need not be measured again."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which is made when the first result comes."""
        self.folder = folder

    def get(self, key: str) -> Results | None:
        """Return a cell's results, none if it was not measured; a damaged file counts as not measured."""
        try:
            return Results.model_validate_json(zstandard.decompress(self._file(key).read_bytes()))
        except (FileNotFoundError, ValidationError, zstandard.ZstdError):
            return None

    def put(self, key: str, results: Results) -> None:
        """Keep a cell's results; whatever happens meanwhile, the file is whole or absent.

        Raises:
            StoreError: the disk is full or not writable.
        """
        try:
            files.write_bytes(self._file(key), zstandard.compress(results.model_dump_json().encode()))
        except HeddleError as error:
            raise StoreError(f"{error}; the cells that were measured before are kept") from error

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json.zst"
