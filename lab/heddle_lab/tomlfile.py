"""TOML files read into pydantic models, with errors that name the file and the key."""

import difflib
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

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
        HeddleError: names `where`, the first wrong key and what is wrong with it, and all keys that are missing.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise HeddleError(f"{where}: {'; '.join(_faults(error.errors(), model))}") from error


def _faults(errors: list[ErrorDetails], model: type[BaseModel]) -> list[str]:
    """Return a text for the first wrong key, and one for all that are missing."""
    missing = [_key(one["loc"]) for one in errors if one["type"] == "missing"]
    wrong = [one for one in errors if one["type"] != "missing"]
    texts = []
    if wrong:
        # A misspelt key is missing under its right name too: the spelling is what to mend.
        first = min(wrong, key=lambda one: one["type"] != "extra_forbidden")
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = _unknown_key(str(first["loc"][-1]), _model_at(model, first["loc"][:-1]))
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        texts.append(f"{_key(first['loc'])}: {message}{more}")
    if missing:
        texts.append(f"missing: {', '.join(missing)}")
    return texts


def _key(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "(top level)"


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    """Say what keys there are; the likeliest if one is much like the wrong one."""
    known = list(model.model_fields) if model else []
    alike = difflib.get_close_matches(key, known, n=1)
    if alike:
        return f"unknown key; did you mean '{alike[0]}'?"
    return f"unknown key; known: {', '.join(known)}" if known else "unknown key"


def _model_at(model: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model of a part of a file, none where it is no model or one of several."""
    here: Any = model
    for part in place:
        if isinstance(part, str) and isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(part)
            here = field.annotation if field else None
        else:  # a list's index or a dictionary's key: what it holds is the type's last argument
            here = (get_args(here) or (None,))[-1]
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def string(text: str) -> str:
    """Return a text as TOML's basic string; lone surrogates, which TOML has not, are spelt out in hex."""
    valid = text.encode("utf-8", "backslashreplace").decode()
    # JSON's escapes are TOML's; DEL is the one character that only TOML wants escaped.
    return json.dumps(valid, ensure_ascii=False).replace("\x7f", "\\u007f")


def find(name: str, folder: Path, kind: str) -> Path:
    """Return the TOML file of a name, or of a path that ends in `.toml`.

    Args:
        name: `smp-4`, or a path such as `mine/box.toml`.
        folder: where the shipped files of this kind are.
        kind: what to call it in the error, such as `machine`.

    Raises:
        HeddleError: the file is called otherwise; else lists the known names.
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
    if path.is_file():
        raise HeddleError(f"{name}: no {kind} of this name is shipped, and the name of a file must end in .toml")
    raise HeddleError(f"unknown {kind} '{name}'; known: {', '.join(names(folder))} (or a path to a .toml file)")


def names(folder: Path) -> list[str]:
    """Return the names of the TOML files in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml"))
