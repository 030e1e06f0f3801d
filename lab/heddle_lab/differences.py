"""What differs between the two sides of a comparison: kernel, command line, scheduler, machine, settings."""

from collections.abc import Iterable, Iterator
from typing import Any

from heddle_lab.comparison import Pair
from heddle_lab.resultfile import CellResult

_DIGITS = 12
"""of a hash, as a person compares it"""

_FILES = {"kernel": "kernel image", "kernel_config": "kernel configuration", "qemu": "QEMU", "image": "guest image"}
"""inputs that are hashes -> what they are of"""


def lines(pairs: Iterable[Pair]) -> list[str]:
    """Return a line for each thing that differs within pairs, such as `kernel: 7.3 → 7.3.4-mine`, each once."""
    return list(dict.fromkeys(line for before, after in pairs for line in _of_pair(before, after)))


def _of_pair(before: CellResult, after: CellResult) -> Iterator[str]:
    left, right = before.provenance["inputs"], after.provenance["inputs"]
    yield from _changed("machine", before.machine, after.machine)
    yield from _changed("kernel", before.provenance["kernel"], after.provenance["kernel"])
    yield from _changed("variant", before.variant, after.variant)
    for name, what in _FILES.items():
        yield from _changed(what, _short(left.get(name)), _short(right.get(name)))
    if before.machine == after.machine:  # some arguments follow from the machine
        yield from _arguments(left["command_line"].split(), right["command_line"].split())
    yield from _scheduler(before, after)
    yield from _settings(before, after)


def _scheduler(before: CellResult, after: CellResult) -> Iterator[str]:
    left, right = (cell.provenance["inputs"]["scheduler"] for cell in (before, after))
    yield from _changed("scheduler", *(" ".join(about["argv"]) or "the kernel's own" for about in (left, right)))
    if left["argv"] and right["argv"]:
        yield from _changed("scheduler program", _short(left["sha256"]), _short(right["sha256"]))


def _settings(before: CellResult, after: CellResult) -> Iterator[str]:
    """Yield the settings of variants and the parameters that differ."""
    left, right = _flat(before), _flat(after)
    for name in dict.fromkeys([*left, *right]):
        yield from _changed(name, left.get(name, "as it is"), right.get(name, "as it is"))


def _flat(cell: CellResult) -> dict[str, str]:
    settings: dict[str, str] = {f"param {name}": str(value) for name, value in cell.params.items()}
    for key, value in cell.provenance["variant"].items():
        if isinstance(value, dict):
            settings |= {f"{key} {name}": str(one) for name, one in value.items()}
        elif isinstance(value, list):
            settings |= {f"{key} {one}": "set" for one in value}
    return settings


def _arguments(left: list[str], right: list[str]) -> Iterator[str]:
    gone = [f"-{word}" for word in left if word not in right]
    come = [f"+{word}" for word in right if word not in left]
    if gone or come:
        yield f"kernel arguments: {' '.join([*gone, *come])}"


def _changed(what: str, before: Any, after: Any) -> Iterator[str]:
    if before != after:
        yield f"{what}: {before} → {after}"


def _short(digest: Any) -> Any:
    """Return the first digits of a hash, or of each of several."""
    if isinstance(digest, list):
        return " ".join(map(_short, digest))
    return f"sha256 {digest[:_DIGITS]}" if digest else "none"
