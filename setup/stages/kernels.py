"""Kernels as Debian publishes them: the image, its config, its modules.

Debian has packaged them in three shapes: all in linux-image-R (to 6.18);
linux-binary-R with linux-base-R and linux-modules-R (7.0 on); and, before a
release is signed, linux-binary-unsigned-R.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

from .. import archive, cache
from ..apt import Item
from ..context import Context, items
from ..debian import Index, newest_key
from ..report import SetupError
from . import kernel_build

SHAPES = (
    "linux-binary-{}",
    "linux-image-{}",
    "linux-binary-unsigned-{}",
    "linux-image-{}-unsigned",
)
COMPANIONS = ("linux-base-{}", "linux-modules-{}")
IMAGES = ("boot/vmlinuz-{}", "usr/lib/modules/{}/vmlinuz", "usr/lib/modules/{}/vmlinuz.unsigned")
CONFIGS = ("boot/config-{}", "usr/lib/modules/{}/config")


def run(context: Context) -> None:
    """Fetch the newest release of each pinned series."""
    for series in context.pins.kernels.series:
        fetch(context, series)


def fetch(context: Context, version: str) -> str:
    """Provide the newest kernel of VERSION (7.3, 7.3.4 or a full release); return its release.

    index.json, VERSION -> release, learns of it.
    """
    if version == context.pins.kernel_build.series:
        release = kernel_build.provide(context)
    else:
        release = _published(context, version)
    index = context.paths.kernels / "index.json"
    known = json.loads(index.read_text()) if index.exists() else {}
    cache.write(index, json.dumps(known | {version: release}, indent=1, sort_keys=True) + "\n")
    return release


def _published(context: Context, version: str) -> str:
    """Fetch the newest kernel of VERSION that Debian has built; return its release."""
    kernels = context.pins.kernels

    def resolve() -> list[Item]:
        index = context.apt.index(kernels.suites)
        return packages_of(index, newest_release(index, version, kernels.flavour))

    found = context.apt.obtain(f"kernel-{version}", kernels, resolve)
    release = re.sub(r"^linux-(image|binary)-(unsigned-)?|-unsigned$", "", found[0][0].name)
    target = context.paths.kernels / release
    if not target.exists():
        context.say(f"unpacking {release}")
        with cache.building(target) as work:
            _unpack([deb for _, deb in found], release, work)
    return release


def newest_release(index: Index, version: str, flavour: str) -> str:
    """The newest release of FLAVOUR in INDEX that VERSION names, as uname -r prints it."""
    pattern = re.compile(rf"^linux-(?:image|binary|binary-unsigned)-(\d[\d.]*\+\w+-{flavour})$")
    releases = {found[1] for name in index.names() if (found := pattern.match(name))}
    wanted = [r for r in releases if r == version or re.match(rf"{re.escape(version)}[.+]", r)]
    if not wanted:
        known = sorted({r.split("+")[0] for r in releases}, key=newest_key)
        raise SetupError(f"no kernel {version} in the pinned suites; there are {', '.join(known)}")
    return max(wanted, key=newest_key)


def packages_of(index: Index, release: str) -> list[Item]:
    """The package with the image of RELEASE first, then those with its config and modules."""
    names = [shape.format(release) for shape in SHAPES]
    # Since 7.0 linux-image-R is an empty package that depends on linux-binary-R.
    image = next(name for name in names if index.versions(name))
    companions = [shape.format(release) for shape in COMPANIONS]
    chosen = [image, *(name for name in companions if index.versions(name))]
    return items([index.versions(name)[0] for name in chosen])


def _unpack(debs: list[Path], release: str, work: Path) -> None:
    with tempfile.TemporaryDirectory(dir=work.parent, prefix=".new-") as folder:
        tree = Path(folder)
        for deb in debs:
            archive.unpack(deb, tree)
        for names, name in ((IMAGES, "vmlinuz"), (CONFIGS, "config")):
            found = [tree / n.format(release) for n in names if (tree / n.format(release)).exists()]
            if not found:
                raise SetupError(f"{debs[0].name} and its companions hold no {name} for {release}")
            shutil.move(found[0], work / name)
        modules = next((p for p in tree.glob("**/lib/modules/" + release)), None)
        if modules:
            shutil.move(modules, work / "modules")
