"""Where everything lies: the repository, the cache, and what `--env` prints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The repository's root and the cache's; all other paths derive from these two."""

    root: Path
    cache: Path

    @classmethod
    def default(cls) -> Paths:
        """The repository this file is in, and ${HEDDLE_CACHE:-~/.cache/heddle}."""
        cache = os.environ.get("HEDDLE_CACHE") or "~/.cache/heddle"
        return cls(Path(__file__).resolve().parent.parent, Path(cache).expanduser().absolute())

    @property
    def apt(self) -> Path:
        """Private apt state and downloaded packages."""
        return self.cache / "apt"

    @property
    def resolved(self) -> Path:
        """Which exact versions the pinned suites and series resolved to."""
        return self.cache / "resolved"

    @property
    def logs(self) -> Path:
        """Full output of the programs that the stages run."""
        return self.cache / "log"

    @property
    def toolchain(self) -> Path:
        """Unpacked compilers; bin/ holds links to those in use."""
        return self.cache / "toolchain"

    @property
    def qemu(self) -> Path:
        """Built QEMUs by content; `current` is the one in use."""
        return self.cache / "qemu"

    @property
    def kernels(self) -> Path:
        """Kernels by release, and index.json: series -> release."""
        return self.cache / "kernels"

    @property
    def image(self) -> Path:
        """Guest images by content; `current` is the one in use."""
        return self.cache / "image"

    @property
    def calibrate(self) -> Path:
        """Measuring programs by content; `current` is the one in use."""
        return self.cache / "calibrate"

    @property
    def peers(self) -> Path:
        """Published schedulers by name and version; bin/ holds links to those pinned."""
        return self.cache / "peers"

    @property
    def audit(self) -> Path:
        """Programs that read advisories; bin/ holds links to those pinned."""
        return self.cache / "audit"

    @property
    def venv(self) -> Path:
        """Python environments by content; `current` is the one in use."""
        return self.cache / "venv"

    @property
    def target(self) -> Path:
        """Cargo's output, inside the repository."""
        return self.root / "target"

    def env(self) -> dict[str, str]:
        """What the laboratory and scripts need to know, by name."""
        return {
            "root": str(self.root),
            "cache": str(self.cache),
            "clang": str(self.toolchain / "bin" / "clang"),
            "qemu": str(self.qemu / "current" / "bin" / "qemu-system-x86_64"),
            "firmware": str(self.qemu / "current" / "share" / "qemu"),
            "kernels": str(self.kernels),
            "image": str(self.image / "current"),
            "peers": str(self.peers / "bin"),
            "venv": str(self.venv / "current"),
            "cells": str(self.cache / "cells"),
            "scheduler": str(self.target / "release" / "scx_heddle"),
        }
