"""Schedulers as the lab knows them: a name, and a command to run in the guest or nothing."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

from heddle_lab import hashing, hostfiles, image, paths, payload
from heddle_lab.errors import HeddleError
from heddle_lab.job import SchedulerCommand
from heddle_lab.tomlfile import Model

EEVDF = "eevdf"
"""the kernel's own scheduler: nothing is started"""

HEDDLE = "scx_heddle"
"""this repository's scheduler"""

_USAGE = 2
"""exit status of scx_heddle for a wrong command line"""


class Scheduler(Model):
    """A scheduler under test."""

    name: str
    option: str
    """as `--sched` takes it"""
    argv: list[str] = []
    """command in the guest; empty: the kernel's own scheduler"""
    program: Path | None = None
    """host file that is copied to the guest; none: the image has it"""

    def command(self) -> SchedulerCommand | None:
        """Return what the agent starts, none for the kernel's own scheduler."""
        return SchedulerCommand(name=self.name, argv=self.argv) if self.argv else None

    def files(self, layers: tuple[str, ...] = ()) -> payload.Files:
        """Return the files to add to the guest: the program, and the libraries that a userland lacks.

        Raises:
            HeddleError: the program needs a library that neither the guest nor the host has.
        """
        libraries = hostfiles.contents(self._libraries(layers))
        return libraries | ({self.argv[0]: (0o755, self.program.read_bytes())} if self.program else {})

    def fingerprint(self, layers: tuple[str, ...]) -> dict[str, Any]:
        """Return what of this scheduler can change a result: its arguments, the hashes of its program and libraries."""
        program = {"argv": self.argv, "sha256": hashing.of_file(self.program) if self.program else None}
        libraries = hostfiles.fingerprint(self._libraries(layers))
        return program | ({"libraries": libraries} if libraries else {})

    def _libraries(self, layers: tuple[str, ...]) -> hostfiles.HostFiles:
        if self.program is None:
            return {}
        files = {self.argv[0]: self.program}
        found = hostfiles.with_libraries(files, layers, f"scheduler '{self.name}'")
        return {guest: host for guest, host in found.items() if guest not in files}

    def check(self, layers: tuple[str, ...]) -> None:
        """Make sure that the command can start in a userland.

        Raises:
            HeddleError: names the program that the image lacks, or the libraries that it and this host lack.
        """
        if self.program is None:
            if self.argv and not image.has_program(self.argv[0], layers):
                raise HeddleError(
                    f"scheduler '{self.name}': no program '{self.argv[0]}' in bin/ or in the guest image; "
                    f"give a path: --sched {self.name}=/path/to/{Path(self.argv[0]).name}"
                )
            return
        hostfiles.check_program(self.program, layers, f"scheduler '{self.name}'")
        self._libraries(layers)

    def is_own(self) -> bool:
        """Tell whether this is the repository's scheduler, with whatever options."""
        return self.program is not None and self.program == _own().resolve()

    def check_options(self) -> None:
        """Make sure that this repository's scheduler takes its options: it says so here, without loading anything.

        Of other programs it is not known what they do if they are started.

        Raises:
            HeddleError: it refuses them; says which, and what is like it.
        """
        if self.program is None or not self.is_own():
            return
        done = subprocess.run(
            [self.program, "--help-stats", *self.argv[1:]], capture_output=True, text=True, check=False
        )
        if done.returncode == _USAGE:
            lines = [line.strip() for line in done.stderr.splitlines()]
            said = [line.partition(": ")[2] for line in lines if line.startswith(("error: ", "tip: "))]
            raise HeddleError(f"scheduler '{self.name}': {'; '.join(said)}; `bin/{HEDDLE} --help` lists the options")


def parse(text: str) -> Scheduler:
    """Return the scheduler of `eevdf`, `scx_heddle`, a published one's name, or `NAME=COMMAND`.

    The command's first word is a path on the host, the name of a file in the repository's `bin/`
    or of a published scheduler (all are copied to the guest), or a program in the guest image.

    Raises:
        HeddleError: the name is unknown or the program missing.
    """
    name, equals, command = text.partition("=")
    name = name.strip()
    if _is_command(name):
        raise HeddleError(
            f"unknown scheduler '{text}'; a command needs a name before it: "
            f"--sched {shlex.quote(f'mine={text.strip()}')}"
        )
    if not equals and name == EEVDF:
        return Scheduler(name=name, option=name)
    if not equals and not is_known(name):
        known = ", ".join([EEVDF, HEDDLE, *_peers()])
        raise HeddleError(
            f"unknown scheduler '{name}'; known: {known}, or NAME=COMMAND; "
            "`python3 -m setup peers` and `kernel-peers` build published ones"
        )
    try:
        argv = shlex.split(command) if equals else [name]
    except ValueError as error:
        raise HeddleError(f"scheduler '{name}': {error} in '{command}'") from error
    if not argv or not name:
        raise HeddleError(f"scheduler '{text}': write NAME=COMMAND")
    program = _host_program(argv[0], name)
    if program:
        argv[0] = f"{hostfiles.PROGRAMS}/{program.name}"
    return Scheduler(name=name, option=text, argv=argv, program=program.resolve() if program else None)


def of_command(text: str) -> Scheduler:
    """Return the scheduler of `eevdf`, or of a command; its name is that of its program.

    Raises:
        HeddleError: the command is empty or the program missing.
    """
    if text == EEVDF:
        return parse(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise HeddleError(f"sched: {error} in '{text}'") from error
    if not words:
        raise HeddleError(f"sched: no command in '{text}'; write eevdf, scx_heddle or a command")
    return parse(words[0] if len(words) == 1 and is_known(words[0]) else f"{Path(words[0]).name}={text}")


def is_known(name: str) -> bool:
    """Tell whether a scheduler is known by this name alone."""
    return name in (EEVDF, HEDDLE, *_peers())


def _is_command(name: str) -> bool:
    """Tell whether what should be a name is a path or a command with arguments."""
    first, *arguments = name.split() or [""]
    return "/" in first or any(first.startswith("scx_") or word.startswith("-") for word in arguments)


def _own() -> Path:
    return paths.REPOSITORY / "bin" / HEDDLE


def _peers() -> list[str]:
    """Return the names of the published schedulers that are built."""
    return sorted(path.name for path in paths.peers().glob("scx_*"))


def _host_program(word: str, scheduler: str) -> Path | None:
    """Return the host's file that a command's first word means, none if it must be in the image."""
    if "/" not in word:
        own = paths.REPOSITORY / "bin" / word
        if word == HEDDLE and not _own().is_file():
            raise HeddleError(f"{_own()} is missing: run `make setup`")
        return next((file for file in (own, paths.peers() / word) if file.is_file()), None)
    path = Path(word).expanduser()
    if not path.is_file():
        raise HeddleError(f"scheduler '{scheduler}': {word}: no such file")
    return path
