"""Which tasks of a trace are kept: by name, pid or cgroup."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from heddle_lab.errors import HeddleError, printable

_LINE = re.compile(r"^/proc/(?:\d+/task/)?(?P<pid>\d+)/cgroup:0::(?P<path>/.*)$")
"""of `grep -H . /proc/[0-9]*/task/[0-9]*/cgroup`: what cgroup v2 says"""

HOW = "grep -H . /proc/[0-9]*/task/[0-9]*/cgroup > cgroups.txt"
"""the command whose output says which task is in which cgroup"""


@dataclass(frozen=True)
class Selection:
    """Patterns of tasks: a number is a pid, what begins with `/` a cgroup with all below it, anything else a name."""

    only: tuple[str, ...] = ()
    """none: all tasks"""
    exclude: tuple[str, ...] = ()
    cgroups: Mapping[int, str] = field(default_factory=dict)
    """pid -> cgroup, where that is known"""

    def keeps(self, pid: int, *names: str) -> bool:
        """Tell whether a task is kept.

        Args:
            pid: of the task.
            names: what it is called, with and without its number.
        """
        if any(self._is(pattern, pid, names) for pattern in self.exclude):
            return False
        return not self.only or any(self._is(pattern, pid, names) for pattern in self.only)

    def check(self, where: str) -> None:
        """Raise an error if a pattern is a cgroup and no cgroups are known.

        Args:
            where: the trace's name.
        """
        for pattern in (*self.only, *self.exclude):
            if pattern.startswith("/") and not self.cgroups:
                raise HeddleError(
                    f"{where}: {pattern}: a trace does not say which task is in which cgroup: on the recorded machine "
                    f"run `{HOW}` while the load runs, and give the file by --cgroups"
                )

    def refuse_nothing(self, where: str, names: Iterable[str]) -> None:
        """Raise the error that no task is kept.

        Args:
            where: the trace's name.
            names: of the tasks that there are.
        """
        known = ", ".join(sorted(map(printable, names)))
        raise HeddleError(f"{where}: --only and --exclude keep no task; the trace has {known or 'none'}")

    def _is(self, pattern: str, pid: int, names: tuple[str, ...]) -> bool:
        if pattern.isdecimal():
            return int(pattern) == pid
        if pattern.startswith("/"):
            path = self.cgroups.get(pid, "")
            return path == pattern or path.startswith(pattern.rstrip("/") + "/")
        return any(fnmatchcase(name, pattern) for name in names)


EVERYTHING = Selection()


def cgroups(file: Path) -> dict[int, str]:
    """Return the cgroup of each task.

    Args:
        file: the output of `HOW`.

    Raises:
        HeddleError: it cannot be read, or no line names a cgroup.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise HeddleError(f"{file}: {error.strerror}") from error
    found = {int(match["pid"]): match["path"] for match in map(_LINE.match, lines) if match}
    if not found:
        raise HeddleError(f"{file}: no line such as /proc/1/task/1/cgroup:0::/init.scope: make it by `{HOW}`")
    return found
