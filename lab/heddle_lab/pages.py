"""The note of a page on those of its tables that another version of scheduler or laboratory has measured.

A page has the note exactly if it shows such a table or links to one. `make lint` sees to it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from heddle_lab import files, paths, resultfile, sources
from heddle_lab.errors import HeddleError
from heddle_lab.resultfile import CellResult

_BEGIN, _END = "<!-- versions:begin -->", "<!-- versions:end -->"
_NOTE = re.compile(rf"\n{_BEGIN}\n.*?\n{_END}\n", re.DOTALL)
_TITLE = re.compile(r"\A(?:#[^\n]*\n)?")
_LINK = re.compile(r"\]\(([^)\s#]+)")
_SHOWN = re.compile(r"<!-- ([^:\n]+):begin -->\n<!-- versions: ([^\n]*) -->\n")

_UNKNOWN = "unknown"
_SEVERAL = "several"
"""what cells of one table do not agree on"""


def of_cells(cells: Iterable[CellResult]) -> sources.Sources:
    """Return the sources that measured cells; empty if they do not say. Variations of the model are left out."""
    found: sources.Sources = {}
    for cell in cells:
        if not cell.variation:
            for name, version in cell.provenance.get("sources", {}).items():
                found[name] = version if found.get(name, version) == version else _SEVERAL
    return found


def mark(measured: sources.Sources) -> str:
    """Return a comment that says which versions measured a table whose results are not published."""
    return f"<!-- versions: {', '.join(f'{name}={version}' for name, version in sorted(measured.items()))} -->"


def all_pages() -> list[Path]:
    """Return the pages of the repository that may show tables."""
    docs = paths.REPOSITORY / "docs"
    own = [page for page in docs.rglob("*.md") if not page.is_relative_to(docs / "results")]
    return sorted([*paths.REPOSITORY.glob("*.md"), paths.LAB / "README.md", *own])


def with_note(page: Path) -> str:
    """Return a page's text with the note that it needs, or without any.

    Raises:
        HeddleError: the page, or results that it links to, cannot be read.
    """
    try:
        text = _NOTE.sub("", page.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeddleError(f"{page}: {error.strerror}") from error
    old = [*_shown(text), *_linked(text, page)]
    if not old:
        return text
    note = f"> Measured before the scheduler or the laboratory last changed: {'; '.join(old)}."
    return _TITLE.sub(lambda title: f"{title[0]}\n{_BEGIN}\n{note}\n{_END}\n", text, count=1)


def is_wrong(page: Path) -> bool:
    """Tell whether a page lacks a note that it needs, or has one that it does not need.

    Raises:
        HeddleError: as `with_note`.
    """
    return with_note(page) != page.read_text(encoding="utf-8")


def update(page: Path) -> bool:
    """Write the note that a page needs; tell whether that changed the page.

    Raises:
        HeddleError: as `with_note`, or the page cannot be written.
    """
    if not is_wrong(page):
        return False
    files.write_text(page, with_note(page))
    return True


def _shown(text: str) -> Iterator[str]:
    """Yield what is to be said of tables that stand in a page and carry their versions themselves."""
    for name, listed in _SHOWN.findall(text):
        parts = (entry.rpartition("=") for entry in listed.split(", "))
        if differing := sources.changed({part: version for part, _, version in parts}):
            yield f"{name} ({', '.join(differing)})"


def _linked(text: str, page: Path) -> Iterator[str]:
    """Yield what is to be said of each folder of results that a page links to."""
    results = paths.REPOSITORY / "docs" / "results"
    targets = (Path(os.path.normpath(page.parent / link)) for link in _LINK.findall(text))
    names = {path.relative_to(results).parts[0] for path in targets if results in path.parents}
    for name in sorted(names):
        if said := _said(results / name):
            yield f"[{name}]({os.path.relpath(results / name / 'table.md', page.parent)}) ({said})"


def _said(folder: Path) -> str:
    """Return by which commit a folder's results were measured, and what has changed since; empty: nothing has."""
    cells = resultfile.read(folder)
    measured = of_cells(cells)
    differing = sources.changed(measured)
    if measured and not differing:
        return ""
    commits = sorted({str(cell.provenance["versions"]["commit"] or _UNKNOWN)[:7] for cell in cells})
    of = f"commit {', '.join(f'`{commit}`' for commit in commits)}"
    return f"{of}: {', '.join(differing)}" if differing else of
