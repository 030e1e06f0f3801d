"""The guest's userland: one uncompressed cpio archive a layer, from Debian packages.

An initrd may be several archives one after the other, so a run loads `base` and
the layers that its workload names. A layer holds what its packages need and
base lacks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from .. import cache, cpio, debian, layers
from ..apt import Item
from ..context import Context, items
from ..layers import Layer
from ..report import SetupError
from ..tree import Tree

IMAGE = "lab/guest/image.toml"

# Where the programs of lab/guest go.
PROGRAMS = {"heddle-agent": "usr/lib/heddle/agent", "heddle-load": "usr/bin/heddle-load"}

# Programs of lab/guest that only some guests are given: they lie beside the layers.
EXTRAS = ("heddle-memory", "heddle-replay")

# What base-passwd, netbase and libc-bin would make in their scripts.
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    "user:x:1000:1000:user:/tmp:/bin/bash\n",
    "etc/group": "root:x:0:\ndaemon:x:1:\ntty:x:5:\nnogroup:x:65534:\nuser:x:1000:\n",
    "etc/hostname": "heddle\n",
    "etc/hosts": "127.0.0.1 localhost heddle\n::1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/ld.so.conf": "",
}
FOLDERS = ("dev", "proc", "root", "run", "sys", "tmp", "var/tmp")

# Depended on for the sake of maintainer scripts, which are not run.
SCRIPTS_ONLY = ("adduser", "debconf", "init-system-helpers", "ucf")
# What Debian's packages count on without naming it, as far as it is of use where no script is run.
ESSENTIAL = ("diffutils", "findutils", "gzip", "hostname", "libc-bin", "ncurses-base", "tar")


def run(context: Context) -> None:
    """Build the layers whose packages or programs have changed; point `current` at them."""
    wanted = layers.load(context.paths.root / IMAGE)
    base = wanted[0]
    archives: dict[str, Path] = {}
    manifest: dict[str, object] = {}
    for layer in wanted:
        found = _packages(context, base, layer)
        sources = _sources(context, layer)
        archives[layer.name] = path = _archive(context, base, layer, found, sources)
        manifest[layer.name] = {
            "packages": {item.name: item.version for item, _ in found},
            "sources": {item.name: item.version for item, _ in sources},
            "sha256": path.with_suffix(".sha256").read_text().strip(),
            "bytes": path.stat().st_size,
        }
    text = json.dumps(manifest, indent=1) + "\n"
    extras = {name: _stripped(context, name) for name in EXTRAS}
    image = context.paths.image / cache.key(text, *extras.values())
    if not image.exists():
        with cache.building(image) as work:
            for name, path in archives.items():
                os.link(path, work / f"{name}.cpio")
            (work / "manifest.json").write_text(text)
            for name, program in extras.items():
                (work / name).write_bytes(program)
    cache.point(context.paths.image / "current", image)


def of_packages(context: Context, names: Sequence[str]) -> Path:
    """The layer of packages NAMES with all they depend on, built unless that has been done."""
    base = layers.load(context.paths.root / IMAGE)[0]
    roots = tuple(sorted({*names, *ESSENTIAL}))
    layer = Layer("packages", roots, SCRIPTS_ONLY, (), ())
    return _archive(context, base, layer, _packages(context, base, layer), [])


def _packages(context: Context, base: Layer, layer: Layer) -> list[tuple[Item, Path]]:
    """The closure of LAYER's packages, less that of BASE, downloaded."""
    suites = context.pins.image_suites

    def resolve() -> list[Item]:
        index = context.apt.index(suites)
        have = debian.closure(index, base.packages, base.without)
        if layer is base:
            return items(have)
        return items(debian.closure(index, layer.packages, layer.without, have))

    pinned = (suites, base.packages, base.without, layer.packages, layer.without)
    return context.apt.obtain(f"image-{layer.name}", pinned, resolve)


def _sources(context: Context, layer: Layer) -> list[tuple[Item, Path]]:
    """The upstream tarballs of LAYER's source packages, downloaded."""
    if not layer.sources:
        return []

    def resolve() -> list[Item]:
        suites = context.pins.debian.source_suites
        return [_upstream(context, suites, name) for name in layer.sources]

    return context.apt.obtain(f"image-{layer.name}-sources", layer.sources, resolve)


def _upstream(context: Context, suites: Sequence[str], name: str) -> Item:
    found = [source for suite in suites for source in context.apt.sources(suite, name)]
    if not found:
        raise SetupError(f"{IMAGE}: no source package {name} in {', '.join(suites)}")
    newest = max(found, key=lambda source: debian.newest_key(source.version))
    origs = [f for f in newest.files if re.search(r"\.orig\.tar\.[a-z0-9]+$", f.path)]
    if len(origs) != 1:
        raise SetupError(f"{IMAGE}: source package {name} has not one upstream tarball")
    return Item(newest.name, newest.version, origs[0])


def _archive(
    context: Context,
    base: Layer,
    layer: Layer,
    packages: list[tuple[Item, Path]],
    sources: list[tuple[Item, Path]],
) -> Path:
    """The archive of LAYER: <name>-<key>.cpio in the cache, its SHA-256 beside it."""
    programs = _programs(context) if layer is base else {}
    drop = layer.drop if layer is base else base.drop + layer.drop
    digest = cache.key(
        *(item.file.sha256 for item, _ in packages + sources),
        repr(drop),
        repr(FILES),
        *(part for path, data in programs.items() for part in (path, data)),
        Path(cpio.__file__),
        Path(__file__).parent.parent / "tree.py",
        Path(__file__),
    )
    folder = context.paths.image / f"{layer.name}-{digest}"
    path = folder / f"{layer.name}.cpio"
    if not folder.exists():
        context.say(f"packing {layer.name} ({len(packages)} packages)")
        tree = Tree()
        for _, deb in packages:
            tree.add_package(deb)
        for item, tarball in sources:
            tree.add_source(tarball, f"usr/src/{item.name}")
        tree.drop(list(drop))
        tree.link_libraries()
        if layer is base:
            _furnish(tree, programs)
        with cache.building(folder) as work:
            with (work / path.name).open("wb") as out:
                cpio.write(out, tree.entries)
            sha256 = cache.file_sha256(work / path.name)
            (work / path.name).with_suffix(".sha256").write_text(sha256 + "\n")
    return path


def _furnish(tree: Tree, programs: dict[str, bytes]) -> None:
    """Add to base what no package holds: our programs, /init, and the files of /etc."""
    for folder in FOLDERS:
        tree.add(folder, cpio.directory(0o1777 if folder.endswith("tmp") else 0o755))
    for path, text in FILES.items():
        tree.add(path, cpio.file(text.encode()))
    for path, data in programs.items():
        tree.add(path, cpio.file(data, 0o755))
    tree.add("init", cpio.symlink("/" + PROGRAMS["heddle-agent"]))


def _programs(context: Context) -> dict[str, bytes]:
    """Where in the guest -> content."""
    return {path: _stripped(context, name) for name, path in PROGRAMS.items()}


def _stripped(context: Context, name: str) -> bytes:
    """A program of lab/guest: debug lines would only cost boot time."""
    program = context.paths.target / "release" / name
    if not program.is_file():
        raise SetupError(f"{program} is missing: python3 -m setup scheduler")
    stripped = context.paths.image / f".new-{name}"
    stripped.parent.mkdir(parents=True, exist_ok=True)
    context.run([context.paths.toolchain / "bin" / "llvm-strip", "-o", stripped, program])
    content = stripped.read_bytes()
    stripped.unlink()
    return content
