"""Versions against dpkg itself; closures on a small archive."""

import subprocess

import pytest

from setup import debian
from setup.debian import Index, Suite
from setup.report import SetupError

VERSIONS = [
    "1.0", "1.0-1", "1.0-1+b1", "1.0~rc1-1", "1:0.9", "1.0-1~bpo13+1", "1.00", "1.0a", "1.0+dfsg-2",
    "1.10", "1.9", "7.3.4-1~bpo13+1", "7.3.4-1", "7.3.10", "0", "1.0-0", "2.0~~", "2.0~",
]  # fmt: skip

STABLE = """\
Package: app
Version: 1.0-1
Pre-Depends: libc (>= 2)
Depends: liba (>= 1.0) | libb, mail-agent,
 tool:any
Filename: pool/app.deb
Size: 10
SHA256: aa

Package: libc
Version: 2.41-1
Filename: pool/libc.deb
Size: 10
SHA256: bb

Package: liba
Version: 0.9-1
Filename: pool/liba.deb
Size: 10
SHA256: cc

Package: libb
Version: 1.0-1
Depends: libc
Filename: pool/libb.deb
Size: 10
SHA256: dd

Package: postman
Version: 1.0-1
Provides: mail-agent (= 3), letters
Filename: pool/postman.deb
Size: 10
SHA256: ee

Package: tool
Version: 1.0-1
Depends: app, interpreter
Filename: pool/tool.deb
Size: 10
SHA256: ff

Package: interpreter
Version: 3-1
Depends: library-of-interpreter
Filename: pool/interpreter.deb
Size: 10
SHA256: 00

Package: library-of-interpreter
Version: 3-1
Filename: pool/loi.deb
Size: 10
SHA256: 11
"""

BACKPORTS = """\
Package: liba
Version: 1.1-1~bpo13+1
Filename: pool/liba11.deb
Size: 10
SHA256: 22

Package: liba
Version: 1.2-1~bpo13+1
Filename: pool/liba12.deb
Size: 10
SHA256: 33
"""


def names(packages: list[debian.Package]) -> list[str]:
    return [package.name for package in packages]


@pytest.mark.parametrize("a", VERSIONS)
def test_versions_are_ordered_as_dpkg_orders_them(a: str) -> None:
    for b in VERSIONS:
        order = debian.compare(a, b)
        sign = "lt" if order < 0 else "gt" if order > 0 else "eq"
        done = subprocess.run(["dpkg", "--compare-versions", a, sign, b], check=False)
        assert done.returncode == 0, (a, sign, b)


def test_a_closure_follows_alternatives_constraints_and_virtual_packages() -> None:
    found = debian.closure(Index([Suite(STABLE)]), ["app"])
    assert names(found) == [
        "app", "interpreter", "libb", "libc", "library-of-interpreter", "postman", "tool",
    ]  # fmt: skip


def test_a_later_suite_serves_what_an_earlier_one_cannot() -> None:
    index = Index([Suite(STABLE), Suite(BACKPORTS)])
    found = {p.name: p.version for p in debian.closure(index, ["app"])}
    assert found["liba"] == "1.2-1~bpo13+1"
    assert "libb" not in found
    assert debian.closure(index, ["liba"])[0].version == "0.9-1"


def test_what_is_left_out_drags_nothing_in() -> None:
    index = Index([Suite(STABLE)])
    assert names(debian.closure(index, ["app"], without=["tool", "mail-agent"])) == [
        "app", "libb", "libc",
    ]  # fmt: skip
    assert "interpreter" not in names(debian.closure(index, ["app"], without=["interpreter"]))
    assert names(debian.closure(index, ["libc"], without=["libc"])) == ["libc"]


def test_a_layer_holds_what_base_lacks() -> None:
    index = Index([Suite(STABLE)])
    base = debian.closure(index, ["libb", "postman"])
    layer = debian.closure(index, ["app"], have=base)
    assert names(layer) == ["app", "interpreter", "library-of-interpreter", "tool"]
    assert set(names(debian.closure(index, ["app"]))) == {*names(base), *names(layer)}


def test_a_missing_package_is_named() -> None:
    with pytest.raises(SetupError, match="no package nonesuch"):
        debian.closure(Index([Suite(STABLE)]), ["nonesuch"])


def test_sources_are_found_with_their_files() -> None:
    text = """\
Package: qemu-web
Version: 1

Package: qemu
Version: 1:10.0.13+ds-0
Directory: pool/main/q/qemu
Checksums-Sha256:
 aa 12 qemu.dsc
 bb 34 qemu.orig.tar.xz
"""
    [source] = debian.find_sources(text, "qemu")
    assert source.version == "1:10.0.13+ds-0"
    assert source.files[1] == debian.File("pool/main/q/qemu/qemu.orig.tar.xz", "bb", 34)
