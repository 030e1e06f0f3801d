"""pins.toml: what is there is read, what is not is named."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from setup import pins
from setup.report import SetupError

PINS = Path(__file__).parent.parent / "pins.toml"


def test_the_repository_s_pins_are_complete() -> None:
    found = pins.load(PINS)
    assert found.kernels.series == ("6.18", "7.3")
    assert "trixie" in found.debian.binary_suites
    assert set(found.clang.suites + found.rust.suites) <= set(found.debian.binary_suites)
    assert set(found.kernels.suites + found.image_suites) <= set(found.debian.binary_suites)
    assert found.qemu.suite in found.debian.source_suites


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("debian", "mirror", "", "debian.mirror"),
        ("debian", "binary_suites", "trixie", "debian.binary_suites"),
        ("kernels", "series", [6.18], "kernels.series"),
        ("qemu", "python", [{"name": "meson"}], r"qemu.python\[0\].version"),
        ("host", "packages", {"gcc": 1}, "host.packages.gcc"),
        ("toolchain", "rust", None, r"\[toolchain.rust\]"),
    ],
)
def test_a_bad_entry_is_named(section: str, key: str, value: Any, named: str) -> None:
    data = tomllib.loads(PINS.read_text())
    data[section][key] = value
    with pytest.raises(pins.PinError, match=named):
        pins.parse(data)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pins.toml"
    file.write_text("[debian\n")
    with pytest.raises(SetupError, match=r"pins\.toml") as error:
        pins.load(file)
    assert "\n" not in str(error.value)
