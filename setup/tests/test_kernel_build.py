"""What becomes of Debian's configuration of a kernel that is built here."""

from pathlib import Path

from setup import pins
from setup.stages import kernel_build

PINNED = pins.load(Path(pins.__file__).with_name("pins.toml")).kernel_build

BASE = """\
# CONFIG_SCHED_CLASS_EXT is not set
CONFIG_LOCALVERSION=""
CONFIG_MODULES=y
CONFIG_VIRTIO_FS=y
CONFIG_EXT4_FS=m
CONFIG_HZ=250
"""


def options(text: str) -> dict[str, str]:
    """The options of a configuration, as Kconfig reads it: the last line on one counts."""
    found = {}
    for line in text.splitlines():
        words = line.removeprefix("# ").removesuffix(" is not set").split("=", 1)
        found[words[0]] = words[1] if len(words) > 1 else "n"
    return found


def test_modules_go_and_what_is_built_in_stays() -> None:
    made = options(kernel_build.configuration(BASE, PINNED))
    assert (made["CONFIG_EXT4_FS"], made["CONFIG_MODULES"]) == ("n", "n")
    assert (made["CONFIG_VIRTIO_FS"], made["CONFIG_HZ"]) == ("y", "250")


def test_what_is_pinned_wins() -> None:
    made = options(kernel_build.configuration(BASE, PINNED))
    assert made["CONFIG_SCHED_CLASS_EXT"] == "y"
    assert made["CONFIG_LOCALVERSION"] == '"-heddle"'
    assert not set(PINNED.off) & set(PINNED.on)
