"""pins.toml as typed values."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import SetupError


@dataclass(frozen=True)
class Debian:
    """The archive everything is fetched from."""

    mirror: str
    keyring: str
    binary_suites: tuple[str, ...]
    source_suites: tuple[str, ...]


@dataclass(frozen=True)
class Tool:
    """Programs unpacked from Debian packages (`prefix` is the folder they are in)."""

    suites: tuple[str, ...]
    packages: tuple[str, ...]
    without: tuple[str, ...]
    prefix: str
    programs: tuple[str, ...]


@dataclass(frozen=True)
class Wheel:
    """A Python package by name, version and SHA-256."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Qemu:
    """The emulator's source, options, build tools and firmware."""

    source: str
    suite: str
    series: str
    configure: tuple[str, ...]
    python: tuple[Wheel, ...]
    firmware_suites: tuple[str, ...]
    firmware_packages: tuple[str, ...]
    firmware_files: tuple[str, ...]


@dataclass(frozen=True)
class KernelBuild:
    """A series that is built here, from packages of its source and its configurations.

    `config` names the one to begin with; options `off` and `on` are changed.
    """

    series: str
    suites: tuple[str, ...]
    source: str
    config_package: str
    config: str
    off: tuple[str, ...]
    on: dict[str, str]
    tools: Tool


@dataclass(frozen=True)
class KernelPeers:
    """Schedulers in a kernel's source, and the package of that kernel's types in C."""

    suites: tuple[str, ...]
    source: str
    types: str
    programs: tuple[str, ...]


@dataclass(frozen=True)
class Kernels:
    """Where kernels come from and which series are fetched without being asked for."""

    suites: tuple[str, ...]
    flavour: str
    series: tuple[str, ...]


@dataclass(frozen=True)
class Pins:
    """All of pins.toml."""

    debian: Debian
    host_packages: dict[str, str]
    clang: Tool
    rust: Tool
    rust_minimum: str
    qemu: Qemu
    kernels: Kernels
    kernel_build: KernelBuild
    image_suites: tuple[str, ...]
    peers: dict[str, str]
    audit: dict[str, str]
    kernel_peers: KernelPeers
    python_minimum: str


def load(path: Path) -> Pins:
    """Read PATH; a missing or mistyped entry is a SetupError that names it."""
    try:
        return parse(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise SetupError(f"{path}: {error}") from None
    except PinError as error:
        raise SetupError(f"{path}: {error}") from None


def parse(data: dict[str, Any]) -> Pins:
    """Turn the decoded TOML into Pins."""
    table = _Table(data, "")
    qemu, firmware = table.table("qemu"), table.table("qemu", "firmware")
    debian, kernels = table.table("debian"), table.table("kernels")
    rust, kernel_peers = table.table("toolchain", "rust"), table.table("kernel-peers")
    return Pins(
        debian=Debian(
            debian.text("mirror").rstrip("/"),
            debian.text("keyring"),
            debian.texts("binary_suites"),
            debian.texts("source_suites"),
        ),
        host_packages=table.table("host", "packages").strings(),
        clang=_tool(table.table("toolchain", "clang")),
        rust=_tool(rust),
        rust_minimum=rust.text("minimum"),
        qemu=Qemu(
            source=qemu.text("source"),
            suite=qemu.text("suite"),
            series=qemu.text("series"),
            configure=qemu.texts("configure"),
            python=tuple(
                Wheel(w.text("name"), w.text("version"), w.text("sha256"))
                for w in qemu.tables("python")
            ),
            firmware_suites=firmware.texts("suites"),
            firmware_packages=firmware.texts("packages"),
            firmware_files=firmware.texts("files"),
        ),
        kernels=Kernels(kernels.texts("suites"), kernels.text("flavour"), kernels.texts("series")),
        kernel_build=_kernel_build(kernels.table("build")),
        image_suites=table.table("image").texts("suites"),
        peers=table.table("peers").strings(),
        audit=table.table("audit").strings(),
        kernel_peers=KernelPeers(
            suites=kernel_peers.texts("suites"),
            source=kernel_peers.text("source"),
            types=kernel_peers.text("types"),
            programs=kernel_peers.texts("programs"),
        ),
        python_minimum=table.table("python").text("minimum"),
    )


def _kernel_build(table: _Table) -> KernelBuild:
    return KernelBuild(
        series=table.text("series"),
        suites=table.texts("suites"),
        source=table.text("source"),
        config_package=table.text("config_package"),
        config=table.text("config"),
        off=table.texts("off"),
        on=table.table("on").strings(),
        tools=_tool(table.table("tools")),
    )


def _tool(table: _Table) -> Tool:
    return Tool(
        suites=table.texts("suites"),
        packages=table.texts("packages"),
        without=table.texts("without"),
        prefix=table.text("prefix"),
        programs=table.texts("programs"),
    )


class PinError(Exception):
    """An entry of pins.toml that is missing or mistyped."""


class _Table:
    """One TOML table that remembers its name, so that errors can say it."""

    def __init__(self, data: Any, name: str) -> None:
        if not isinstance(data, dict):
            raise PinError(f"[{name}] is missing or not a table")
        self._data: dict[str, Any] = data
        self._name = name

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def table(self, *keys: str) -> _Table:
        here = self
        for key in keys:
            here = _Table(here._data.get(key), here._path(key))
        return here

    def tables(self, key: str) -> list[_Table]:
        value = self._data.get(key)
        if not isinstance(value, list):
            raise PinError(f"{self._path(key)} must be an array of tables")
        return [_Table(item, f"{self._path(key)}[{i}]") for i, item in enumerate(value)]

    def text(self, key: str) -> str:
        value = self._data.get(key)
        if not isinstance(value, str) or not value:
            raise PinError(f"{self._path(key)} must be a non-empty string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._data.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise PinError(f"{self._path(key)} must be an array of strings")
        return tuple(value)

    def strings(self) -> dict[str, str]:
        for key, value in self._data.items():
            if not isinstance(value, str):
                raise PinError(f"{self._path(key)} must be a string")
        return dict(self._data)
