"""TOML files read into pydantic models, with errors that name the file and the key."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from heddle_lab.errors import HeddleError


class Model(BaseModel):
    """Base of all that is read from or written to files: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ModelT = TypeVar("ModelT", bound=BaseModel)


def load(path: Path, model: type[ModelT]) -> ModelT:
    """Read a TOML file into a model.

    Args:
        path: the file.
        model: the pydantic model of its content.

    Raises:
        HeddleError: the file cannot be read, is not TOML, or has a wrong key or value.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HeddleError(f"{path}: {error}") from error
    return validate(content, model, str(path))


def validate(content: Any, model: type[ModelT], where: str) -> ModelT:
    """Turn plain data into a model.

    Args:
        content: what TOML or JSON gave.
        model: the pydantic model of the content.
        where: the file's name, for the error.

    Raises:
        HeddleError: names `where`, the first wrong key, and what is wrong with it.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(top level)"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = (
                f"unknown key; known: {', '.join(model.model_fields)}" if len(first["loc"]) == 1 else "unknown key"
            )
        raise HeddleError(f"{where}: {key}: {message}{more}") from error


def find(name: str, folder: Path, kind: str) -> Path:
    """Return the TOML file of a name, or of a path that ends in `.toml`.

    Args:
        name: `smp-4`, or a path such as `mine/box.toml`.
        folder: where the shipped files of this kind are.
        kind: what to call it in the error, such as `machine`.

    Raises:
        HeddleError: lists the known names.
    """
    shipped = folder / f"{name}.toml"
    if "/" not in name and shipped.is_file():
        return shipped
    path = Path(name)
    if path.suffix == ".toml":
        # `experiments/demo.toml` means the shipped file from wherever the command is typed.
        for candidate in (path, folder.parent / path, folder / path):
            if candidate.is_file():
                return candidate
        raise HeddleError(f"{name}: no such file")
    raise HeddleError(f"unknown {kind} '{name}'; known: {', '.join(names(folder))} (or a path to a .toml file)")


def names(folder: Path) -> list[str]:
    """Return the names of the TOML files in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml"))
