"""Debian's archive through apt with a private state: the host's apt never notices."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cache, debian, process
from .debian import File, Index, Source, Suite
from .paths import Paths
from .pins import Debian
from .report import Progress, SetupError

HELPER = "/usr/lib/apt/apt-helper"
FRESH_S = 3600.0  # indexes younger than this are not fetched again


@dataclass(frozen=True)
class Item:
    """One resolved package: what a set of names stood for when it was resolved."""

    name: str
    version: str
    file: File


class Apt:
    """Resolves names to exact packages, remembers that, and fetches them by SHA-256."""

    def __init__(self, paths: Paths, pins: Debian, progress: Progress, *, refresh: bool) -> None:
        """Bind the archive PINS to the cache in PATHS; REFRESH resolves everything anew."""
        self._paths = paths
        self._pins = pins
        self._progress = progress
        self._refresh = refresh
        self._updated = False
        self._lock = threading.Lock()
        self._indexes: dict[str, Suite] = {}

    def obtain(
        self, name: str, pinned: object, resolve: Callable[[], Sequence[Item]]
    ) -> list[tuple[Item, Path]]:
        """The packages that RESOLVE names, each with its downloaded file.

        The resolution is kept in resolved/NAME-<key of PINNED>.json and used
        again, so that nothing changes under a user until `--update`. A kept
        resolution whose files have left the mirror is made anew.
        """
        items, fresh = self._resolution(name, pinned, resolve, self._refresh)
        try:
            return self._fetch(name, items)
        except SetupError:
            if fresh:
                raise
        self._progress.say(name, "the mirror has moved on, resolving again")
        items, _ = self._resolution(name, pinned, resolve, True)
        return self._fetch(name, items)

    def _resolution(
        self, name: str, pinned: object, resolve: Callable[[], Sequence[Item]], refresh: bool
    ) -> tuple[list[Item], bool]:
        saved = self._paths.resolved / f"{name}-{cache.key(self._pins.mirror, repr(pinned))}.json"
        if saved.exists() and not refresh:
            data = json.loads(saved.read_text())
            return [Item(i["name"], i["version"], File(**i["file"])) for i in data], False
        self._update()
        items = list(resolve())
        cache.write(saved, json.dumps([asdict(item) for item in items], indent=1) + "\n")
        return items, True

    def index(self, suites: Sequence[str]) -> Index:
        """The packages of SUITES, the first suite preferred."""
        return Index([self._suite(suite) for suite in suites])

    def _suite(self, suite: str) -> Suite:
        with self._lock:
            if suite not in self._indexes:
                text = self._index_text(suite, "main_binary-amd64_Packages")
                self._indexes[suite] = Suite(text)
            return self._indexes[suite]

    def sources(self, suite: str, name: str) -> list[Source]:
        """All versions of source package NAME in SUITE."""
        return debian.find_sources(self._index_text(suite, "main_source_Sources"), name)

    def _index_text(self, suite: str, kind: str) -> str:
        site = self._pins.mirror.split("://", 1)[-1].replace("_", "%5f").replace("/", "_")
        path = self._paths.apt / "state" / "lists" / f"{site}_dists_{suite}_{kind}"
        try:
            return path.read_text()
        except OSError:
            raise SetupError(f"apt kept no index {path}; remove {self._paths.apt}") from None

    def _update(self) -> None:
        """Fetch the suites' indexes, unless that was done less than FRESH_S ago."""
        lock = self._paths.cache / "lock" / "apt"
        with self._lock, cache.locked(lock, "apt", self._progress):
            stamp = self._paths.apt / "updated"
            sources = self._sources_list()
            known = stamp.read_text() if stamp.exists() else ""
            recent = stamp.exists() and time.time() - stamp.stat().st_mtime < FRESH_S
            if self._updated or (known == sources and recent and not self._refresh):
                return
            self._progress.say("apt", f"fetching the indexes of {self._pins.mirror}")
            cache.write(self._paths.apt / "sources.list", sources)
            for folder in ("state/lists/partial", "cache/archives/partial", "none", "archives"):
                (self._paths.apt / folder).mkdir(parents=True, exist_ok=True)
            (self._paths.apt / "state" / "status").touch()
            self._run(["apt-get", *self._options(), "--error-on=any", "update"], "apt")
            stamp.write_text(sources)
            self._updated = True
            self._indexes.clear()

    def _sources_list(self) -> str:
        pins = self._pins
        option = f"[arch=amd64 signed-by={pins.keyring}]"
        lines = [f"deb {option} {pins.mirror} {suite} main" for suite in pins.binary_suites]
        lines += [f"deb-src {option} {pins.mirror} {suite} main" for suite in pins.source_suites]
        return "\n".join(lines) + "\n"

    def _options(self) -> list[str]:
        """Options that keep apt's reading and writing inside the cache.

        They go on the command line because a host's /etc/apt/apt.conf.d (which
        stays in force: it may hold a proxy) would override a file of ours.
        """
        base = self._paths.apt
        settings = {
            "Dir::State": base / "state",
            "Dir::State::status": base / "state" / "status",
            "Dir::Cache": base / "cache",
            "Dir::Etc::sourcelist": base / "sources.list",
            "Dir::Etc::sourceparts": base / "none",
            "Dir::Etc::preferences": base / "none" / "preferences",
            "Dir::Etc::preferencesparts": base / "none",
            "Acquire::GzipIndexes": "false",
            "Acquire::Languages": "none",
            "Acquire::Check-Valid-Until": "false",  # a snapshot's indexes have expired
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
            "Acquire::Retries": "3",
            "APT::Sandbox::User": "root",  # apt's own user cannot enter a home folder
            "APT::Update::Post-Invoke-Success::": "",
        }
        return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]

    def _fetch(self, stage: str, items: Sequence[Item]) -> list[tuple[Item, Path]]:
        store = self._paths.apt / "archives"
        found = [(i, store / f"{i.file.sha256[:16]}-{Path(i.file.path).name}") for i in items]
        if all(path.exists() for _, path in found):
            return found
        # One stage downloads at a time: two may want the same file.
        with self._lock, cache.locked(self._paths.cache / "lock" / "apt", "apt", self._progress):
            missing = [(item, path) for item, path in found if not path.exists()]
            size = sum(item.file.size for item, _ in missing) / 1e6
            self._progress.say(stage, f"downloading {len(missing)} files, {size:.0f} MB")
            # A few at a time: an interruption then loses little.
            for start in range(0, len(missing), 8):
                self._fetch_some(stage, missing[start : start + 8])
        return found

    def _fetch_some(self, stage: str, batch: Sequence[tuple[Item, Path]]) -> None:
        words: list[str] = []
        partial = [(path.with_name(f".new-{path.name}"), path) for _, path in batch]
        for (item, _), (fresh, _) in zip(batch, partial, strict=True):
            fresh.parent.mkdir(parents=True, exist_ok=True)
            words += [f"{self._pins.mirror}/{item.file.path}", str(fresh)]
            words.append(f"SHA256:{item.file.sha256}")
        self._run([HELPER, *self._options(), "download-file", *words], stage)
        for (item, _), (fresh, path) in zip(batch, partial, strict=True):
            if cache.file_sha256(fresh) != item.file.sha256:
                raise SetupError(f"{path.name}: not the SHA-256 that the index states; run again")
            fresh.replace(path)

    def _run(self, words: Sequence[str], stage: str) -> None:
        try:
            process.run(
                words, log=self._paths.logs / "apt.log", stage=stage, progress=self._progress
            )
        except SetupError as error:
            if "NO_PUBKEY" in str(error) or "not signed" in str(error):
                raise SetupError(
                    f"{self._pins.keyring} lacks the keys of {self._pins.binary_suites[0]}: "
                    "apt-get install --only-upgrade debian-archive-keyring"
                ) from None
            raise
