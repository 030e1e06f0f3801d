"""image.toml: layers in order, errors by name."""

from pathlib import Path
from typing import Any

import pytest

from setup import layers

IMAGE = Path(__file__).parents[2] / "lab" / "guest" / "image.toml"


def test_the_repository_s_layers_are_read() -> None:
    found = layers.load(IMAGE)
    assert found[0].name == "base"
    assert "bash" in found[0].packages


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "layers.base"),
        ({"layers": {"base": {}}, "extra": 1}, "extra"),
        ({"layers": {"base": {"package": []}}}, "layers.base.package: unknown"),
        ({"layers": {"base": {"drop": "/usr"}}}, "layers.base.drop"),
        ({"layers": {"base": {}, "c": {"sources": "lua"}}}, "layers.c.sources"),
        ({"layers": {"base": {}, "../x": {}}}, "layers.../x"),
    ],
)
def test_a_bad_entry_is_named(data: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        layers.parse(data)
