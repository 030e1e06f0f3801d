"""The Debian package, installed by dpkg in the guest, started as its unit starts it."""

import shlex

import pytest

from heddle_lab.job import Read, SchedulerCommand, SchedulerStart, SchedulerStop, Step
from tests.conftest import Boot
from tests.packaging import build, unit

PACKAGE = "/root/scx-heddle.deb"
STATE = "/sys/kernel/sched_ext/state"

EMPTY_DATABASE = "mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/log && touch /var/lib/dpkg/status"
"""the image is unpacked, not installed: dpkg knows of no package, and misses programs that it does not need here"""


def as_service() -> list[str]:
    """The unit's command, confined as the unit confines it as far as no systemd is needed."""
    settings = unit()
    bounding = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in settings["CapabilityBoundingSet"].split())
    command = [word for word in shlex.split(settings["ExecStart"]) if not word.startswith("$")]
    return ["setpriv", "--no-new-privs", f"--bounding-set=-all,{bounding}", *command]


@pytest.mark.every_kernel
def test_the_installed_package_schedules_as_its_unit_starts_it(boot: Boot) -> None:
    service = SchedulerCommand(name="service", argv=as_service())
    steps = [
        Step(name="database", argv=["sh", "-c", EMPTY_DATABASE]),
        Step(name="install", argv=["dpkg", "--install", "--force-depends,bad-path", PACKAGE]),
        Step(name="check", argv=["scx_heddle", "--check"]),
        Step(name="start", action=SchedulerStart(scheduler=service)),
        Step(name="load", argv=["hackbench", "-g", "1", "-f", "2", "-l", "100"]),
        Step(name="state", action=Read(path=STATE)),
        Step(name="stop", action=SchedulerStop()),
        Step(name="remove", argv=["dpkg", "--purge", "--force-bad-path", "scx-heddle"]),
        Step(name="left", argv=["sh", "-c", "ls /etc/scx_heddle.toml /usr/bin/scx_heddle"], expect_exit=2),
    ]
    files = {PACKAGE: (0o644, build().read_bytes())}
    results = boot(steps, layers=["dpkg"], files=files).check()
    assert results.step("state").stdout.strip() == "enabled"
