"""Kernels: those that setup fetched, a bzImage by path, or a tree in which one was built."""

import json
import re
from pathlib import Path

from heddle_lab import bzimage, files, hashing, paths
from heddle_lab.errors import HeddleError
from heddle_lab.tomlfile import Model

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
"""of Linux, as setup takes it"""


class Kernel(Model):
    """A bootable kernel and its configuration."""

    name: str
    """short name, such as `7.3`, or the release"""
    release: str
    """what `uname -r` will say"""
    image: Path
    option: str
    """as `--kernel` takes it"""
    config: Path
    """goes to /boot/config-RELEASE in the guest: BPF loaders read it"""

    @property
    def hz(self) -> int:
        """Timer ticks per second, as configured.

        Raises:
            HeddleError: the configuration does not say.
        """
        match = re.search(r"^CONFIG_HZ=(\d+)$", self.config.read_text(encoding="utf-8"), re.MULTILINE)
        if match is None:
            raise HeddleError(f"{self.config}: CONFIG_HZ is missing: not the configuration of an x86 kernel")
        return int(match[1])

    def fingerprint(self) -> list[str]:
        """Return the hashes of the image and of its configuration.

        Raises:
            HeddleError: one of them cannot be read.
        """
        return [hashing.of_file(self.image), hashing.of_file(self.config)]

    def bootable(self) -> Path:
        """Return the file that QEMU boots: the kernel unpacked if QEMU can enter that, else the image itself.

        It is unpacked once and kept in the cache under the image's hash.
        """
        folder = paths.unpacked_kernels() / hashing.of_file(self.image)
        unpacked, whole = folder / "vmlinux", folder / "bzImage-only"
        if not unpacked.exists() and not whole.exists():
            kernel = bzimage.pvh_kernel(self.image.read_bytes())
            files.write_bytes(unpacked if kernel else whole, kernel or b"")
        return unpacked if unpacked.exists() else self.image


def version(release: str) -> tuple[int, int]:
    """Return the first two numbers of a release such as `6.18.15+deb13-cloud-amd64`."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def known() -> dict[str, str]:
    """Return short names and releases of the kernels in the cache."""
    index = paths.kernel_index()
    if not index.is_file():
        return {}
    content: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))
    return content


def find(name: str) -> Kernel:
    """Return the kernel of a short name (`7.3`), of a release, or of a path to a bzImage or to a built kernel tree.

    A bzImage needs the kernel's configuration beside it, named `config` or `config-RELEASE`.

    Raises:
        HeddleError: there is no such kernel; lists the known ones.
    """
    index = known()
    release = index.get(name, name)
    folder = paths.kernel_dir(release)
    if "/" in name or not release or not (folder / "vmlinuz").is_file():
        if name and Path(name).is_dir():
            return _of_tree(name)
        if "/" in name:
            return _of_image(name)
        have = ", ".join(sorted(index)) or "none: run `make setup`"
        wanted = name if _VERSION.fullmatch(name) else "VERSION"
        more = f"`python3 -m setup kernel {wanted}` adds one, or give a path to a bzImage or to a built kernel tree"
        raise HeddleError(f"unknown kernel '{name}'; known: {have}; {more}")
    return Kernel(name=name, option=name, release=release, image=folder / "vmlinuz", config=folder / "config")


_BUILT = Path("arch/x86/boot/bzImage")


def _of_tree(name: str) -> Kernel:
    """Return the kernel that was built in a tree, or in a folder of its own by `make O=`."""
    image, config = Path(name) / _BUILT, Path(name) / ".config"
    for file in (image, config):
        if not file.is_file():
            raise HeddleError(f"{name}: no {file.relative_to(name)}: not a tree where `make bzImage` built a kernel")
    return _kernel(name, image, config)


def _of_image(name: str) -> Kernel:
    image = Path(name)
    release = _release(image)
    for config in (image.with_name("config"), image.with_name(f"config-{release}")):
        if config.is_file():
            return _kernel(name, image, config)
    raise HeddleError(f"{image}: put the kernel's configuration beside it as config-{release}")


def _kernel(name: str, image: Path, config: Path) -> Kernel:
    release = _release(image)
    return Kernel(name=release, option=name, release=release, image=image.resolve(), config=config.resolve())


def _release(image: Path) -> str:
    try:
        return bzimage.release(image.read_bytes(), str(image))
    except OSError as error:
        raise HeddleError(f"{image}: {error.strerror}") from error
