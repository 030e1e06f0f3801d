"""Command line of set-up: `python3 -m setup [STAGE...]`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from . import pins, plan
from .apt import Apt
from .context import Context
from .environment import environment
from .paths import Paths
from .report import Progress, SetupError
from .stages import STAGES, image, kernel_build, kernels, qemu


def main() -> int:
    """Parse the command line, run what it names; 0, or 1 after one line on stderr."""
    paths = Paths.default()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... versions | head` is no error
    # A job runner ends its jobs by SIGTERM; what set-up has started must end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # What follows `exec` is another program's command line.
        if sys.argv[1:2] == ["exec"]:
            return _exec(sys.argv[2:], paths)
        return _dispatch(_parser().parse_args(), paths)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        # What no stage expected to fail: a full disk, a cache that may not be written.
        words = [str(error.filename or ""), error.strerror or str(error)]
        print(f"setup: {': '.join(filter(None, words))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run again to go on from here", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(stage.name for stage in STAGES)
    parser = argparse.ArgumentParser(
        prog="python3 -m setup",
        description="Provide all that Heddle needs, in ${HEDDLE_CACHE:-~/.cache/heddle}.",
        epilog="Other words: `kernel VERSION` fetches one more kernel, or builds it (6.12), "
        "`layer PACKAGE...` builds an image layer of Debian packages, "
        "`exec COMMAND...` runs a command with the unpacked compilers and the Python environment "
        "in PATH, `versions` prints what the pins resolved to.",
    )
    parser.add_argument("--env", action="store_true", help="print the resolved paths as JSON")
    parser.add_argument("--update", action="store_true", help="resolve suites and series anew")
    parser.add_argument(
        "--source", metavar="DIR", type=Path,
        help="with `qemu`: only unpack the pinned source into DIR, patches as commits; "
        "with `kernel`: Debian's source of the kernel that is built here, with the tools for it",
    )  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="STAGE", help=f"of {names}")
    return parser


def _dispatch(arguments: argparse.Namespace, paths: Paths) -> int:
    words: list[str] = arguments.words
    if arguments.env:
        print(json.dumps(paths.env(), indent=1))
        return 0
    if words[:1] == ["versions"]:
        return _versions(paths)
    _set_up(arguments, words, paths)
    return 0


def _set_up(arguments: argparse.Namespace, words: list[str], paths: Paths) -> None:
    progress = Progress()
    chosen = pins.load(paths.root / "setup" / "pins.toml")
    apt = Apt(paths, chosen.debian, progress, refresh=arguments.update)

    def context(stage: str) -> Context:
        return Context(stage, paths, chosen, apt, progress)

    if words == ["kernel"] and arguments.source:
        with context("kernels").alone():
            kernel_build.unpack_source(context("kernels"), arguments.source)
    elif words[:1] == ["kernel"]:
        if len(words) != 2:
            raise SetupError("kernel takes one version, as in `kernel 7.2` or `kernel 6.18.15`")
        with context("kernels").alone():
            print(kernels.fetch(context("kernels"), words[1]))
    elif words[:1] == ["layer"]:
        if len(words) == 1:
            raise SetupError("layer takes Debian packages, as in `layer redis-server`")
        with context("image").alone():
            print(image.of_packages(context("image"), words[1:]))
    elif arguments.source:
        if words != ["qemu"]:
            raise SetupError("--source goes with one word, `qemu` or `kernel`")
        qemu.unpack_source(context("qemu"), arguments.source)
    else:
        plan.run(plan.select(STAGES, words), context)


def _exec(words: list[str], paths: Paths) -> int:
    if not words:
        raise SetupError("exec takes a command")
    os.environ.update(environment(paths))
    try:
        os.execvp(words[0], words)  # noqa: S606 (what `exec` means)
    except OSError as error:
        raise SetupError(f"{words[0]}: {error.strerror}") from None


def _versions(paths: Paths) -> int:
    for path in sorted(paths.resolved.glob("*.json")):
        for item in json.loads(path.read_text()):
            print(f"{path.stem}\t{item['name']}\t{item['version']}\t{item['file']['sha256']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
