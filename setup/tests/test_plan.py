"""Stages run after those that they need; a failure stops the rest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from setup import pins, plan
from setup.apt import Apt
from setup.context import Context
from setup.paths import Paths
from setup.report import Progress, SetupError
from setup.stages import STAGES, Stage

PINS = Path(__file__).parent.parent / "pins.toml"


def contexts(folder: Path) -> Callable[[str], Context]:
    paths, found, progress = Paths(folder, folder), pins.load(PINS), Progress()
    apt = Apt(paths, found.debian, progress, refresh=False)
    return lambda name: Context(name, paths, found, apt, progress)


def test_needs_come_first(tmp_path: Path) -> None:
    order: list[str] = []
    stages = [
        Stage("c", lambda _: order.append("c"), ("a", "b")),
        Stage("a", lambda _: order.append("a"), ()),
        Stage("b", lambda _: order.append("b"), ("a",)),
    ]
    plan.run(stages, contexts(tmp_path))
    assert order == ["a", "b", "c"]


def test_a_stage_brings_what_it_needs() -> None:
    assert [s.name for s in plan.select(STAGES, ["image"])] == [
        "host", "toolchain", "scheduler", "image",
    ]  # fmt: skip
    everything = [stage.name for stage in STAGES if not stage.on_demand]
    assert [s.name for s in plan.select(STAGES, [])] == everything
    assert not {"deb", "peers", "audit"} & set(everything)
    assert [s.name for s in plan.select(STAGES, ["peers"])] == ["host", "toolchain", "peers"]
    with pytest.raises(SetupError, match="no stage nonesuch: there are host"):
        plan.select(STAGES, ["nonesuch"])
