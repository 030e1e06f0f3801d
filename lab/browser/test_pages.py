"""The committed reports in a real browser, as wide as a phone and as a desk: `make look`.

No part of `make test`, whose set-up has no browser. Screenshots are left in out/look for somebody to look at.
"""

import html
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from heddle_lab import paths

PAGES = sorted((paths.REPOSITORY / "docs" / "results").glob("*/report.html"))
WIDTHS = (360, 1200)
"""CSS pixels"""

SHOTS = paths.REPOSITORY / "out" / "look"
SHOT_HEIGHT = 2400

FRAME = """<!doctype html>
<body style="margin: 0"><iframe id="page" width="{width}" height="{height}" style="border: 0" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
window.addEventListener("load", () => {{
  const frame = document.getElementById("page"), inside = frame.contentDocument;
  inside.querySelectorAll("details").forEach(part => part.open = true);
  const box = part => part.getBoundingClientRect();
  const name = part => part.tagName + "." + part.className + ": " + part.textContent.trim().slice(0, 40);
  const parts = [...inside.querySelectorAll("main *, footer *")].filter(part => !part.closest("svg svg, svg *"));
  document.getElementById("found").textContent = JSON.stringify({{
    wide: inside.documentElement.scrollWidth,
    cut: parts.filter(part => !part.closest(".scroll") && box(part).right > {width} + 1).map(name),
    flat: parts.filter(part => part.tagName == "svg" && !(box(part).width > 20 && box(part).height > 5)).map(name),
    pictures: inside.querySelectorAll("svg").length,
    rows: inside.querySelectorAll(".rows tbody tr").length,
  }});
}});
</script>
"""
"""a frame, since a window is never as narrow as a phone; a page's own scripts would not be: it has none"""


@cache
def browser() -> str:
    found = shutil.which("chromium")
    assert found, "no chromium in PATH: `make look` installs it"
    return found


def opened(file: Path, *arguments: str) -> str:
    """Open a file without a window and return what the browser prints; it cannot reach any network."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--hide-scrollbars",
    ]
    done = subprocess.run(
        [browser(), *flags, *arguments, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def framed(page: Path, width: int, folder: Path) -> Path:
    file = folder / f"{page.parent.name}-{width}.html"
    text = html.escape(page.read_text(encoding="utf-8"))
    file.write_text(FRAME.format(page=text, width=width, height=SHOT_HEIGHT), encoding="utf-8")
    return file


def found(page: Path, width: int, folder: Path) -> dict[str, Any]:
    dom = opened(framed(page, width, folder), "--dump-dom")
    match = re.search(r'<pre id="found">(.+?)</pre>', dom, re.DOTALL)
    assert match, "the probe did not run"
    result: dict[str, Any] = json.loads(html.unescape(match[1]))
    return result


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES, ids=[page.parent.name for page in PAGES])
def test_nothing_is_cut_off_and_every_picture_is_drawn(page: Path, width: int, tmp_path: Path) -> None:
    seen = found(page, width, tmp_path)
    assert seen["wide"] <= width
    assert seen["cut"] == []
    assert seen["flat"] == []
    assert seen["rows"] > 0
    assert seen["pictures"] > seen["rows"]
    SHOTS.mkdir(parents=True, exist_ok=True)
    shot = SHOTS / f"{page.parent.name}-{width}.png"
    shot.unlink(missing_ok=True)
    opened(framed(page, width, tmp_path), f"--screenshot={shot}", f"--window-size={width},{SHOT_HEIGHT}")
    assert shot.stat().st_size > 10_000


def test_a_page_that_is_cut_off_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    folder.mkdir()
    page = folder / "report.html"
    wide = "<main><p style='width: 50rem'>too wide</p><svg width=0></svg></main>"
    page.write_text(f"<!doctype html><body>{wide}", encoding="utf-8")
    seen = found(page, WIDTHS[0], tmp_path)
    assert seen["wide"] > WIDTHS[0]
    assert seen["cut"] == ["P.: too wide"]
    assert len(seen["flat"]) == 1
