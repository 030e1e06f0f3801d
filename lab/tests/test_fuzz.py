"""Whatever a file or an option holds, it is read, or refused in one line: no traceback, nothing that hangs."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_lab import experiment, machine, paths, recording, scheduler, trace, workload
from heddle_lab.errors import HeddleError
from tests.test_recording import STYLES, ping_pong

FILES: list[tuple[Callable[[str], object], Path]] = [
    (load, file)
    for load, folder in (
        (machine.load, paths.MACHINES),
        (workload.load, paths.WORKLOADS),
        (experiment.load, paths.EXPERIMENTS),
    )
    for file in sorted(folder.glob("*.toml"))
]

EXAMPLES = int(os.environ.get("HEDDLE_EXAMPLES", "20"))
"""per file; more of them look further"""

VALUES = st.sampled_from(
    ["-1", "0", "1e308", "nan", "inf", '""', '"x"', "true", "[]", "{}", "99999999999999999999", "="]
)


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A text some of whose lines are gone, doubled, swapped, or have other values or characters."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["drop", "double", "swap", "value", "noise"]))
        if kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "value" and "=" in lines[at]:
            lines[at] = f"{lines[at].partition('=')[0]}= {draw(VALUES)}"
        else:
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:cut] + draw(st.text(max_size=4)) + lines[at][cut + 1 :]
    return "\n".join(lines) + "\n"


def read_or_refuse(read: Callable[[], object]) -> None:
    said = ""
    try:
        read()
    except HeddleError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


@pytest.mark.parametrize(("load", "file"), FILES, ids=lambda value: getattr(value, "stem", ""))
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(load: Callable[[str], object], file: Path, data: st.DataObject) -> None:
    text = data.draw(damaged(file.read_text()))
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.toml"
        copy.write_text(text, encoding="utf-8", errors="replace")
        read_or_refuse(lambda: load(str(copy)))


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=5 * EXAMPLES)
@given(data=st.data())
def test_a_damaged_trace_is_read_or_refused(style: str, data: st.DataObject) -> None:
    text = data.draw(damaged(ping_pong(6, style)))
    read_or_refuse(lambda: recording.read(text, "x"))
    read_or_refuse(lambda: trace.parse(text))


@settings(max_examples=10 * EXAMPLES)
@given(text=st.text(max_size=30))
def test_any_option_is_read_or_refused(text: str) -> None:
    read_or_refuse(lambda: scheduler.parse(text))
    read_or_refuse(lambda: scheduler.parse(f"mine={text}"))
    read_or_refuse(lambda: workload.parse_param(text))
    read_or_refuse(lambda: workload.parse_param(f"load={text}"))
