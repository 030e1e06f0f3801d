"""Debian's package metadata: versions, control stanzas, dependency closures. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key

from .report import SetupError


@dataclass(frozen=True)
class File:
    """A file in the archive: path below the mirror, SHA-256 in hex, size in bytes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Package:
    """A binary package; `depends` joins Pre-Depends and Depends."""

    name: str
    version: str
    file: File
    depends: str
    provides: str


@dataclass(frozen=True)
class Source:
    """A source package and its files."""

    name: str
    version: str
    files: tuple[File, ...]


def compare(a: str, b: str) -> int:
    """Order two versions as Debian Policy 5.6.12 does: negative, zero or positive."""
    for left, right in zip(_parts(a), _parts(b), strict=True):
        if result := _compare_part(left, right):
            return result
    return 0


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return (epoch, upstream, revision) if dash else (epoch, rest, "")


def _order(char: str) -> int:
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256


def _compare_part(a: str, b: str) -> int:
    left, right = _runs(a), _runs(b)
    for i in range(max(len(left), len(right))):
        text_a, number_a = left[i] if i < len(left) else ("", 0)
        text_b, number_b = right[i] if i < len(right) else ("", 0)
        weights_a = [*map(_order, text_a), 0]
        weights_b = [*map(_order, text_b), 0]
        if weights_a != weights_b:
            return -1 if weights_a < weights_b else 1
        if number_a != number_b:
            return -1 if number_a < number_b else 1
    return 0


def _runs(part: str) -> list[tuple[str, int]]:
    """PART as alternating (non-digits, number) pairs; an absent number counts as 0."""
    pairs: list[tuple[str, str]] = re.findall(r"(\D*)(\d*)", part)
    return [(text, int(number or 0)) for text, number in pairs if text or number]


newest_key = cmp_to_key(compare)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The control stanzas in TEXT; a folded field keeps its line breaks."""
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith((" ", "\t")):
                fields[name] += "\n" + line.strip()
            elif line and not line.startswith("#"):
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


class Suite:
    """The packages of one Packages index, parsed only when they are asked for.

    An index holds some 68,000 stanzas, of which set-up needs hundreds.
    """

    def __init__(self, text: str) -> None:
        """Take the index's TEXT apart, without parsing it."""
        self._named: dict[str, list[str]] = {}
        self._providers: dict[str, set[str]] = {}
        for block in text.split("\n\n"):
            name = block[len("Package: ") : block.find("\n")]
            self._named.setdefault(name, []).append(block)
            if (start := block.find("\nProvides: ")) >= 0:
                end = block.find("\n", start + 1)
                for relation, *_ in parse_relations(block[start + len("\nProvides: ") : end]):
                    self._providers.setdefault(relation.name, set()).add(name)

    def names(self) -> Iterable[str]:
        """All package names."""
        return self._named.keys()

    def versions(self, name: str) -> list[Package]:
        """All versions of package NAME, the newest first."""
        found = [_package(fields) for b in self._named.get(name, ()) for fields in stanzas(b)]
        return sorted(found, key=lambda package: newest_key(package.version), reverse=True)

    def providers(self, name: str) -> set[str]:
        """The names of the packages that provide the virtual package NAME."""
        return self._providers.get(name, set())


def _package(fields: dict[str, str]) -> Package:
    return Package(
        name=fields["Package"],
        version=fields["Version"],
        file=File(fields["Filename"], fields["SHA256"], int(fields["Size"])),
        depends=", ".join(filter(None, (fields.get("Pre-Depends"), fields.get("Depends")))),
        provides=fields.get("Provides", ""),
    )


def find_sources(text: str, name: str) -> list[Source]:
    """All versions of source package NAME in a Sources index."""
    found = []
    # An index has tens of thousands of stanzas; only those of NAME are parsed.
    for block in text.split("\n\n"):
        if not block.startswith(f"Package: {name}\n"):
            continue
        for s in stanzas(block):
            lines = [line.split() for line in s["Checksums-Sha256"].splitlines() if line]
            files = tuple(File(f"{s['Directory']}/{n}", sha, int(size)) for sha, size, n in lines)
            found.append(Source(name, s["Version"], files))
    return found


@dataclass(frozen=True)
class Relation:
    """One alternative of a dependency: `name (op version)`; op is empty if any will do."""

    name: str
    op: str
    version: str

    def admits(self, version: str) -> bool:
        """Whether VERSION satisfies the relation."""
        order = compare(version, self.version) if self.op else 0
        return {
            "": True, "=": order == 0, "<<": order < 0, "<=": order <= 0,
            ">=": order >= 0, ">>": order > 0,
        }[self.op]  # fmt: skip


_RELATION = re.compile(
    r"^([a-z0-9][a-z0-9+.-]*)(?::\w+)?(?:\s*\((<<|<=|=|>=|>>)\s*([^)\s]+)\s*\))?"
)


def parse_relations(field: str) -> list[list[Relation]]:
    """A Depends or Provides field as a conjunction of alternatives."""
    groups = []
    for group in filter(None, (g.strip() for g in field.replace("\n", " ").split(","))):
        matches = (_RELATION.match(text.strip()) for text in group.split("|"))
        alternatives = [Relation(m[1], m[2] or "", m[3] or "") for m in matches if m]
        if alternatives:
            groups.append(alternatives)
    return groups


class Index:
    """Packages of several suites in order of preference."""

    def __init__(self, suites: Sequence[Suite]) -> None:
        """Look names up in SUITES, the first one preferred."""
        self._suites = suites

    def names(self) -> set[str]:
        """All package names."""
        return set().union(*(suite.names() for suite in self._suites))

    def versions(self, name: str) -> list[Package]:
        """All versions of package NAME, the preferred one first."""
        return [package for suite in self._suites for package in suite.versions(name)]

    def best(self, relation: Relation) -> Package | None:
        """The preferred package that satisfies RELATION, real ones before virtual ones."""
        for package in self.versions(relation.name):
            if relation.admits(package.version):
                return package
        for suite in self._suites:
            for name in sorted(suite.providers(relation.name)):
                return suite.versions(name)[0]
        return None


def provided(package: Package) -> set[str]:
    """The names PACKAGE answers to."""
    return {package.name, *(r.name for (r, *_) in parse_relations(package.provides))}


def closure(
    index: Index, roots: Iterable[str], without: Iterable[str] = (), have: Iterable[Package] = ()
) -> list[Package]:
    """ROOTS and all they depend on, sorted by name, less HAVE and less WITHOUT.

    Recommends are left out. A dependency that a chosen package or one of HAVE
    satisfies adds nothing; one that is named in WITHOUT is taken as satisfied.
    The first alternative that exists is chosen, as apt does.
    """
    roots = list(roots)
    absent = set(without) - set(roots)
    satisfied = set(absent).union(*(provided(package) for package in have))
    chosen: dict[str, Package] = {}
    queue = [[Relation(name, "", "")] for name in roots]
    wanted_by = "the list of packages"
    while queue:
        group = queue.pop(0)
        if any(alternative.name in satisfied for alternative in group):
            continue
        found = next(filter(None, map(index.best, group)), None)
        if found is None:
            names = " | ".join(alternative.name for alternative in group)
            raise SetupError(f"no package {names} in the pinned suites ({wanted_by})")
        if found.name in absent:
            continue
        chosen[found.name] = found
        satisfied |= provided(found)
        queue += parse_relations(found.depends)
        wanted_by = f"after {found.name}"
    return [chosen[name] for name in sorted(chosen)]
