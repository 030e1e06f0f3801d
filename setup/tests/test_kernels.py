"""Which release a version stands for, and which packages hold it."""

import pytest

from setup.debian import Index, Suite
from setup.report import SetupError
from setup.stages import kernels

NAMES = [
    "linux-image-6.18.9+deb13-cloud-amd64",
    "linux-image-6.18.15+deb13-cloud-amd64",
    "linux-image-6.18.15+deb13-cloud-amd64-dbg",
    "linux-image-6.18.16+deb13-amd64",
    "linux-binary-7.2.13+deb14-cloud-amd64",
    "linux-image-7.2.13+deb14-cloud-amd64",
    "linux-base-7.2.13+deb14-cloud-amd64",
    "linux-modules-7.2.13+deb14-cloud-amd64",
    "linux-binary-unsigned-7.3.4+deb13-cloud-amd64",
    "linux-base-7.3.4+deb13-cloud-amd64",
]
INDEX = Index(
    [
        Suite(
            "\n\n".join(
                f"Package: {name}\nVersion: 1\nFilename: f\nSize: 1\nSHA256: s" for name in NAMES
            )
        )
    ]
)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("6.18", "6.18.15+deb13-cloud-amd64"),
        ("6.18.9", "6.18.9+deb13-cloud-amd64"),
        ("7.2", "7.2.13+deb14-cloud-amd64"),
        ("7", "7.3.4+deb13-cloud-amd64"),
        ("7.3", "7.3.4+deb13-cloud-amd64"),
        ("7.3.4+deb13-cloud-amd64", "7.3.4+deb13-cloud-amd64"),
    ],
)
def test_a_version_names_its_newest_release(version: str, release: str) -> None:
    assert kernels.newest_release(INDEX, version, "cloud-amd64") == release


@pytest.mark.parametrize("version", ["6.1", "7.3.3", "8.0"])
def test_an_unknown_version_lists_what_there_is(version: str) -> None:
    with pytest.raises(SetupError, match=r"6\.18\.9, 6\.18\.15, 7\.2\.13, 7\.3\.4"):
        kernels.newest_release(INDEX, version, "cloud-amd64")


@pytest.mark.parametrize(
    ("release", "packages"),
    [
        ("6.18.15+deb13-cloud-amd64", ["image"]),
        ("7.2.13+deb14-cloud-amd64", ["binary", "base", "modules"]),
        ("7.3.4+deb13-cloud-amd64", ["binary-unsigned", "base"]),
    ],
)
def test_each_shape_of_packaging_is_known(release: str, packages: list[str]) -> None:
    found = [item.name for item in kernels.packages_of(INDEX, release)]
    assert found == [f"linux-{name}-{release}" for name in packages]
