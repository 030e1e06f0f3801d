"""What every stage is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import cache, debian, process
from .apt import Apt, Item
from .debian import Package
from .paths import Paths
from .pins import Pins
from .report import Progress


@dataclass(frozen=True)
class Context:
    """Paths, pins, the archive and the reporter, bound to one stage's name."""

    stage: str
    paths: Paths
    pins: Pins
    apt: Apt
    progress: Progress

    def say(self, what: str) -> None:
        """Report WHAT under the stage's name."""
        self.progress.say(self.stage, what)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the stage's lock, so that two set-ups never build the same thing at once."""
        with cache.locked(self.paths.cache / "lock" / self.stage, self.stage, self.progress):
            yield

    @property
    def log(self) -> Path:
        """Where the output of this stage's programs goes."""
        return self.paths.logs / f"{self.stage}.log"

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        show: str | None = None,
        terminal: bool = False,
    ) -> None:
        """Run a program of this stage (see `process.run`)."""
        process.run(
            argv,
            log=self.log,
            stage=self.stage,
            progress=self.progress,
            cwd=cwd,
            env=env,
            show=show,
            terminal=terminal,
        )

    def packages(
        self, name: str, suites: Sequence[str], roots: Sequence[str], without: Sequence[str] = ()
    ) -> list[tuple[Item, Path]]:
        """ROOTS with their dependencies from SUITES, downloaded (see `debian.closure`)."""

        def resolve() -> list[Item]:
            return items(debian.closure(self.apt.index(suites), roots, without))

        return self.apt.obtain(name, (tuple(suites), tuple(roots), tuple(without)), resolve)


def items(packages: Sequence[Package]) -> list[Item]:
    """PACKAGES as the archive wants them."""
    return [Item(p.name, p.version, p.file) for p in packages]
