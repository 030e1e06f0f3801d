"""The manual pages and shell completions of `heddle`, generated from its options."""

import tomllib
from pathlib import Path

import click
from click.shell_completion import get_completion_class
from click_man.core import write_man_pages

from heddle_lab import files, paths

SHELLS = ("bash", "fish", "zsh")


def write(cli: click.Command, folder: Path) -> list[Path]:
    """Write heddle.1, a page for each of its commands, and the completions.

    Args:
        cli: the command `heddle`.
        folder: is made; pages of an earlier call are replaced.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((paths.LAB / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    write_man_pages("heddle", cli, version=project["version"], target_dir=str(folder))
    written = sorted(folder.glob("heddle*.1"))
    for shell in SHELLS:
        completion = get_completion_class(shell)
        assert completion is not None, shell  # noqa: S101 (click ships these three)
        target = folder / f"heddle.{shell}"
        files.write_text(target, completion(cli, {}, "heddle", "_HEDDLE_COMPLETE").source())
        written.append(target)
    return written
