"""Hooks of the documentation's generator (mkdocs): what pages take from the programs, and links into the repository.

A line `<!-- scx_heddle: OPTION -->` in a page becomes what `scx_heddle OPTION` prints.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Protocol

from heddle_lab import files, paths
from heddle_lab.errors import HeddleError

PROGRAM = paths.REPOSITORY / "bin" / "scx_heddle"

_PLACE = re.compile(r"^<!-- scx_heddle: (--[a-z-]+) -->$", re.MULTILINE)
_MARKDOWN = re.compile(r'<a href="([^"]+)\.md">([^<]*)</a>')
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


class Page(Protocol):
    """What of mkdocs's pages is used."""

    file: Any


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a page's text with outputs filled in and links out of the documentation named instead.

    Raises:
        HeddleError: a program cannot be asked, or a link leads nowhere.
    """
    source = Path(page.file.abs_src_path)
    filled = _PLACE.sub(lambda found: _table(found[1]), markdown)
    return _LINK.sub(lambda found: _link(found, source), filled)


def on_post_build(config: Any, **_: object) -> None:
    """Lead the links of reports to the pages that were made of Markdown; name what is outside of the site."""
    for report in Path(config["site_dir"]).glob("results/*/report.html"):
        files.write_text(report, _led(report.read_text(encoding="utf-8"), report.parent))


def _led(text: str, folder: Path) -> str:
    def link(found: re.Match[str]) -> str:
        return f'<a href="{found[1]}.html">{found[2]}</a>' if (folder / f"{found[1]}.html").is_file() else found[2]

    return _MARKDOWN.sub(link, text)


def _table(option: str) -> str:
    """Return the lines `NAME  TEXT` of an option as a table."""
    if not PROGRAM.is_file():
        raise HeddleError(f"{PROGRAM} is missing: run `make setup`")
    said = subprocess.run([PROGRAM, option], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=1) for line in said.splitlines()]
    return "\n".join(["| counter | what it counts |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)])


def _link(found: re.Match[str], source: Path) -> str:
    target = Path(os.path.normpath(source.parent / found[2]))
    if target.is_relative_to(paths.REPOSITORY / "docs") and target.suffix != ".toml":
        return found[0]  # mkdocs checks it
    if not target.exists():
        raise HeddleError(f"{source}: {found[2]} is not there")
    place = target.relative_to(paths.REPOSITORY)
    return f"`{place}`" if found[1].strip("`") in (str(place), place.name) else f"{found[1]} (`{place}`)"
