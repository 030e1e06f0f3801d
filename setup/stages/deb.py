"""The Debian package of the scheduler, in out/."""

from __future__ import annotations

import gzip
import re
import tempfile
import tomllib
from pathlib import Path

from .. import process
from ..context import Context
from ..environment import environment
from ..report import SetupError

PACKAGING = "scheduler/packaging"
CONTROL = ("control", "conffiles", "postinst", "prerm", "postrm")

# File of the packaging folder -> where it is installed.
FILES = {
    "scx_heddle.service": "usr/lib/systemd/system/scx_heddle.service",
    "scx_heddle.default": "etc/default/scx_heddle",
    "scx_heddle.toml": "etc/scx_heddle.toml",
    "grafana/heddle.json": "usr/share/doc/scx-heddle/grafana/heddle.json",
}

# Shell -> where its completions are installed.
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/scx_heddle",
    "fish": "usr/share/fish/vendor_completions.d/scx_heddle.fish",
    "zsh": "usr/share/zsh/vendor-completions/_scx_heddle",
}

# dpkg-shlibdeps wants a source package around the program.
SOURCE = b"Source: scx-heddle\n\nPackage: scx-heddle\nArchitecture: amd64\n"

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: The Heddle developers
License: GPL-2
 On Debian systems the licence is in /usr/share/common-licenses/GPL-2.
"""


def run(context: Context) -> None:
    """Pack the built scheduler with its unit, manual page and completions."""
    program = context.paths.target / "release" / "scx_heddle"
    if not program.is_file():
        raise SetupError(f"{program} is missing: run make setup")
    version = tomllib.loads((context.paths.root / "scheduler/Cargo.toml").read_text())["package"][
        "version"
    ]
    target = context.paths.root / "out" / f"scx-heddle_{version}_amd64.deb"
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="heddle-deb-") as name:
        tree = Path(name) / "tree"
        _fill(context, program, tree)
        _control(context, tree, version)
        context.run(["dpkg-deb", "--root-owner-group", "--build", tree, target])
    context.say(str(target))


def _fill(context: Context, program: Path, tree: Path) -> None:
    """Put all that is installed under TREE."""
    source = context.paths.root / PACKAGING
    for name, path in FILES.items():
        _place(tree / path, (source / name).read_bytes())
    binary = tree / "usr/bin/scx_heddle"
    _place(binary, program.read_bytes(), mode=0o755)
    context.run(["llvm-strip", binary], env=environment(context.paths))
    _place(tree / "usr/share/man/man8/scx_heddle.8.gz", _zip(_said(program, "--man")))
    for shell, path in COMPLETIONS.items():
        _place(tree / path, _said(program, "--completions", shell))
    doc = tree / "usr/share/doc/scx-heddle"
    _place(doc / "copyright", COPYRIGHT.encode())
    _place(doc / "README.md", (context.paths.root / "README.md").read_bytes())


def _control(context: Context, tree: Path, version: str) -> None:
    """Write TREE's DEBIAN folder."""
    source = context.paths.root / PACKAGING
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    values = {
        "version": version,
        "size": str(size // 1024),
        "depends": _depends(tree / "usr/bin/scx_heddle"),
    }
    for name in CONTROL:
        text = re.sub(r"@(\w+)@", lambda found: values[found[1]], (source / name).read_text())
        scripts = text.startswith("#!")
        _place(tree / "DEBIAN" / name, text.encode(), mode=0o755 if scripts else 0o644)


def _depends(program: Path) -> str:
    """The packages of the libraries that PROGRAM loads."""
    with tempfile.TemporaryDirectory(prefix="heddle-shlibs-") as name:
        source = Path(name)
        _place(source / "debian/control", SOURCE)
        said = process.output(["dpkg-shlibdeps", "-O", program], cwd=source)
    found = re.search(r"^shlibs:Depends=(.+)$", said or "", re.MULTILINE)
    if found is None:
        raise SetupError(f"dpkg-shlibdeps does not tell what {program} loads")
    return found[1]


def _said(program: Path, *arguments: str) -> bytes:
    said = process.output([program, *arguments])
    if said is None:
        raise SetupError(f"{program} {' '.join(arguments)} fails")
    return said.encode()


def _zip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _place(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
