"""QEMU with the virtual clock: Debian's source, the patch series, our options and plugin."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .. import archive, cache, process, virtualenv
from ..apt import Item
from ..context import Context
from ..debian import newest_key
from ..pins import Wheel
from ..report import SetupError

PATCHES = "lab/clock/patches"
PROFILER = "lab/profile"
PROFILER_FLAGS = ("-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")
# The UEFI images are not in Debian's tarball, and meson unpacks them whenever it
# finds bzip2, even with --disable-install-blobs.
EDK2 = ("unpack_edk2_blobs = bzip2.found()", "unpack_edk2_blobs = false")


def run(context: Context) -> None:
    """Build QEMU, unless these sources, patches, options and firmware were built before."""
    qemu = context.pins.qemu
    tarball = source(context)
    firmware = context.packages("firmware", qemu.firmware_suites, qemu.firmware_packages)
    digest = cache.key(
        _tree_key(tarball),
        *(part for patch in patches(context) for part in (patch.name, patch)),
        *(context.paths.root / PROFILER / name for name in ("instructions.c", "mark.S")),
        *PROFILER_FLAGS,
        repr(qemu),
        *(item.file.sha256 for item, _ in firmware),
    )
    target = context.paths.qemu / digest
    if not target.exists():
        binary = _build(context, tarball)
        with cache.building(target) as work:
            (work / "bin").mkdir()
            shutil.copy2(binary, work / "bin")
            _add_firmware(context, [deb for _, deb in firmware], work)
            _add_profiler(context, _tree(context, tarball), work / "lib" / "heddle")
    cache.point(context.paths.qemu / "current", target)


def patches(context: Context) -> list[Path]:
    """The clock's patches, in order."""
    return sorted((context.paths.root / PATCHES).glob("*.patch"))


def source(context: Context) -> Path:
    """The source tarball: HEDDLE_QEMU_SOURCE, or the newest of the pinned series."""
    if given := os.environ.get("HEDDLE_QEMU_SOURCE"):
        path = Path(given).expanduser().absolute()
        if not path.is_file():
            raise SetupError(f"HEDDLE_QEMU_SOURCE={given}: no such file")
        return path
    qemu = context.pins.qemu

    def resolve() -> list[Item]:
        found = [
            s for s in context.apt.sources(qemu.suite, qemu.source)
            if s.version.split(":")[-1].startswith(qemu.series + ".")
        ]  # fmt: skip
        if not found:
            raise SetupError(
                f"{qemu.suite} has no {qemu.source} {qemu.series}: see setup/pins.toml"
            )
        newest = max(found, key=lambda s: newest_key(s.version))
        origs = [f for f in newest.files if ".orig.tar." in f.path and not f.path.endswith(".asc")]
        return [Item(newest.name, newest.version, file) for file in origs]

    [(_, tarball)] = context.apt.obtain("qemu", (qemu.source, qemu.suite, qemu.series), resolve)
    return tarball


def unpack_source(context: Context, folder: Path) -> None:
    """Unpack the pinned source into FOLDER as a git repository, the patches as commits."""
    if folder.exists() and any(folder.iterdir()):
        raise SetupError(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    _unpack(context, source(context), folder)
    _commit(context, folder)


def _git(folder: Path) -> list[str | Path]:
    identity = ["-c", "user.name=heddle", "-c", "user.email=heddle@localhost", "-c", "gc.auto=0"]
    return ["git", "-C", folder, *identity]


def _unpack(context: Context, tarball: Path, folder: Path) -> None:
    """Make FOLDER a git repository whose tag `base` is the source as the build takes it."""
    context.say(f"unpacking {tarball.name}")
    context.run(["tar", "-xf", tarball, "--strip-components=1", "-C", folder])
    meson = folder / "meson.build"
    text = meson.read_text() if meson.is_file() else ""
    if text.count(EDK2[0]) != 1:
        raise SetupError(f"{tarball} is not a QEMU source that these patches know")
    meson.write_text(text.replace(*EDK2))
    git = _git(folder)
    context.run([*git, "init", "-q"])
    context.run([*git, "add", "-A", "-f"])
    context.run([*git, "commit", "-q", "-m", "QEMU as the build takes it"])
    context.run([*git, "tag", "base"])


def _commit(context: Context, folder: Path) -> None:
    """Add the patches to the repository FOLDER, one commit each."""
    git = _git(folder)
    context.run([*git, "checkout", "-q", "-B", "clock", "base"])
    for patch in patches(context):
        context.say(f"applying {patch.name}")
        try:
            context.run([*git, "am", "-q", "--keep-cr", patch])
        except SetupError:
            context.run([*git, "am", "--abort"])
            raise _misfit(context, patch) from None


def check_out(context: Context, tree: Path) -> None:
    """Make the files of the repository TREE those of `base` with the patches.

    Only files whose content is not right yet are written, whatever an earlier
    series or an interrupted call left: what was compiled from the others stays.
    """
    scratch = {"GIT_INDEX_FILE": str(tree / ".git" / "series")}
    git = _git(tree)
    context.run([*git, "read-tree", "base"], env=scratch)
    for patch in patches(context):
        try:
            context.run([*git, "apply", "--cached", patch], env=scratch)
        except SetupError:
            raise _misfit(context, patch) from None
    series = process.output([*git, "write-tree"], env=scratch)
    if series is None:
        raise SetupError(f"git cannot write to {tree}; remove the folder and run again")
    (tree / ".git" / "index.lock").unlink(missing_ok=True)  # of a git that was killed
    process.output([*git, "update-index", "-q", "--refresh"])  # a copied cache has other times
    context.run([*git, "read-tree", "--reset", "-u", series.strip()])
    context.run([*git, "clean", "-q", "-d", "-f"])


def _misfit(context: Context, patch: Path) -> SetupError:
    return SetupError(f"{PATCHES}/{patch.name} does not apply; see {context.log}")


def _tree(context: Context, tarball: Path) -> Path:
    return context.paths.qemu / f"source-{_tree_key(tarball)}"


def _tree_key(tarball: Path) -> str:
    return cache.key(cache.file_sha256(tarball), *EDK2)


def _build(context: Context, tarball: Path) -> Path:
    """Compile, and return the binary.

    The tree and the objects are kept under the names of the source and of the
    configuration: an interrupted compilation goes on where it was, and another
    series of patches compiles what it changes.
    """
    tree = _tree(context, tarball)
    if not tree.exists():
        with cache.building(tree) as work:
            _unpack(context, tarball, work)
    context.say(f"applying {len(patches(context))} patches")
    check_out(context, tree)
    objects = context.paths.qemu / f"build-{cache.key(str(tree), repr(context.pins.qemu))}"
    if not (objects / "configured").exists():
        shutil.rmtree(objects, ignore_errors=True)
        objects.mkdir(parents=True)
        python = _meson(context)
        context.say("configuring")
        options = [f"--python={python}", "--prefix=/usr", *context.pins.qemu.configure]
        context.run([tree / "configure", *options], cwd=objects)
        (objects / "configured").touch()
    context.say("compiling")
    context.run(["ninja", "-C", objects, "qemu-system-x86_64"], show=r"^(\[\d+/\d+\])")
    return objects / "qemu-system-x86_64"


def _meson(context: Context) -> Path:
    """The interpreter of a Python environment that holds the pinned build tools."""
    requirements = "".join(map(_requirement, context.pins.qemu.python))
    return (
        virtualenv.provide(context, context.paths.venv / "meson", requirements) / "bin" / "python3"
    )


def _requirement(wheel: Wheel) -> str:
    return f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n"


def _add_firmware(context: Context, debs: list[Path], work: Path) -> None:
    """Copy the pinned ROMs to WORK/share/qemu, where QEMU looks beside its own bin/."""
    share, tree = work / "share" / "qemu", work / "firmware"
    share.mkdir(parents=True)
    for deb in debs:
        archive.unpack(deb, tree)
    for name in context.pins.qemu.firmware_files:
        found = next((p for p in sorted(tree.rglob(name)) if p.is_file()), None)
        if found is None:
            raise SetupError(f"no {name} in {', '.join(context.pins.qemu.firmware_packages)}")
        shutil.copy(found, share / name)
    shutil.rmtree(tree)


def _add_profiler(context: Context, tree: Path, folder: Path) -> None:
    """Compile the counter of instructions, against the source TREE, and the guest's program."""
    folder.mkdir(parents=True)
    source = context.paths.root / PROFILER
    glib = (process.output(["pkg-config", "--cflags", "glib-2.0"]) or "").split()
    plugin: list[str | Path] = [f"-I{tree / 'include' / 'qemu'}", *glib, source / "instructions.c"]
    context.run(
        ["gcc", *PROFILER_FLAGS, "-shared", "-fPIC", *plugin, "-o", folder / "instructions.so"]
    )
    program: list[str | Path] = ["-nostdlib", "-static", "-Wl,--build-id=none", source / "mark.S"]
    context.run(["gcc", *program, "-o", folder / "mark"])
