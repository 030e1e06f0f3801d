"""`heddle bisect`: which commit of a kernel's tree made it worse. Git searches; a verdict tells good from bad."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from heddle_lab import criterion, kernels
from heddle_lab.criterion import Criterion
from heddle_lab.errors import HeddleError

BUILD = f"make olddefconfig && make -j{len(os.sched_getaffinity(0))} bzImage"
"""the default command"""

_REPRODUCIBLE = {
    "KBUILD_BUILD_VERSION": "1",
    "KBUILD_BUILD_TIMESTAMP": "@0",
    "KBUILD_BUILD_USER": "heddle",
    "KBUILD_BUILD_HOST": "heddle",
}
"""the same image of the same commit, whose cells are then known"""

_DIGITS = 12
"""of a commit, in a kernel's release"""


class Tree:
    """A git work tree of a kernel that is configured."""

    def __init__(self, path: Path) -> None:
        """Use a tree.

        Raises:
            HeddleError: it is no git work tree, or has no configuration.
        """
        self.path = path
        if not path.is_dir() or self._git("rev-parse", "--git-dir", check=False).returncode:
            raise HeddleError(f"{path}: not a git work tree of a kernel")
        if not (path / ".config").is_file():
            raise HeddleError(f"{path}: no .config: configure the kernel first, such as by `make defconfig`")

    def commit(self, name: str) -> str:
        """Return the hash of a commit.

        Raises:
            HeddleError: there is none of this name.
        """
        found = self._git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        if found.returncode:
            raise HeddleError(f"{self.path}: no commit '{name}'")
        return found.stdout.strip()

    def describe(self, commit: str) -> str:
        """Return a commit's short hash and its subject."""
        return self._git("log", "-1", "--format=%h %s", commit).stdout.strip()

    def build(self, command: str) -> str:
        """Build what is checked out, its commit at the end of its release; return nothing, or why that failed.

        Args:
            command: of a shell, in the tree.
        """
        head = self.commit("HEAD")
        log = self._folder() / "build.log"
        with log.open("wb") as out:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=self.path,
                env={**os.environ, **_REPRODUCIBLE, "LOCALVERSION": f"-{head[:_DIGITS]}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return f"cannot build {self.describe(head)}: `{command}` failed, see {log}" if done.returncode else ""

    def keep(self) -> Path:
        """Copy what was built to where no other commit's build overwrites it; return the image.

        Raises:
            HeddleError: the build left no kernel.
        """
        kernel = kernels.find(str(self.path.resolve()))
        folder = self._folder() / self.commit("HEAD")[:_DIGITS]
        folder.mkdir(exist_ok=True)
        shutil.copy(kernel.image, folder / "bzImage")
        shutil.copy(kernel.config, folder / "config")
        return folder / "bzImage"

    def checkout(self, commit: str) -> None:
        """Check a commit out.

        Raises:
            HeddleError: git cannot, such as over untracked files.
        """
        self._git("checkout", "--quiet", commit)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Check out at the end what is checked out now.

        Raises:
            HeddleError: tracked files differ from their commit, or a bisection is under way.
        """
        if self._git("status", "--porcelain", "--untracked-files=no").stdout:
            raise HeddleError(f"{self.path}: files differ from their commit; commit or stash them")
        if Path(self.path, self._git("rev-parse", "--git-path", "BISECT_START").stdout.strip()).exists():
            raise HeddleError(f"{self.path}: a bisection is under way; end it by `git bisect reset`")
        branch = self._git("symbolic-ref", "--short", "--quiet", "HEAD", check=False).stdout.strip()
        before = branch or self.commit("HEAD")
        try:
            yield
        finally:
            self._git("bisect", "reset", before, check=False)
            self._git("checkout", "--quiet", before)

    def bisect(self, good: str, bad: str, command: list[str]) -> str | None:
        """Have git search, with its output on stdout; return the first bad commit, none if it cannot be told.

        Args:
            good: a commit.
            bad: a later one.
            command: what `git bisect run` is given.

        Raises:
            HeddleError: git gave up, such as when the command did.
        """
        self._git("bisect", "start", bad, good)
        done = subprocess.run(["git", "bisect", "run", *command], cwd=self.path, check=False)
        if done.returncode == _ONLY_SKIPPED:
            return None
        if done.returncode:
            raise HeddleError(f"{self.path}: `git bisect run` gave up (exit {done.returncode}); see its last lines")
        return self.commit("refs/bisect/bad")

    def _folder(self) -> Path:
        """Return the folder below .git where kernels and the log are kept."""
        folder = Path(self.path.resolve(), self._git("rev-parse", "--git-path", "heddle").stdout.strip())
        folder.mkdir(exist_ok=True)
        return folder

    def _git(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(["git", *words], cwd=self.path, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise HeddleError(f"{self.path}: git {' '.join(words)}: {' '.join(done.stderr.split())}")
        return done


_ONLY_SKIPPED = 2
"""exit status of `git bisect run` where only commits are left that cannot be told"""


def run(tree: Tree, good: str, bad: str, build: str, wanted: Criterion) -> str | None:
    """Return the first bad commit between two, none if it cannot be told; what was checked out is so again.

    Args:
        tree: of the kernel.
        good: a commit; all others are compared with it.
        bad: a later one, which must be worse.
        build: a shell command that builds the kernel.
        wanted: what makes a kernel bad.

    Raises:
        HeddleError: an end cannot be built, the bad one is not worse, or git gives up.
    """
    first, last = tree.commit(good), tree.commit(bad)
    with tree.restored():
        tree.checkout(first)
        if failure := tree.build(build):
            raise HeddleError(failure)
        against = tree.keep()
        command = [sys.executable, "-m", "heddle_lab", "verdict", ".", "--against", str(against), "--build", build]
        command += wanted.words()
        tree.checkout(last)
        click.echo(f"{tree.describe(last)}, the bad end:")
        status = subprocess.run(command, cwd=tree.path, check=False).returncode
        if status != criterion.BAD:
            raise HeddleError(f"{bad} is not found to be worse than {good} (above): nothing to bisect")
        return tree.bisect(first, last, command)
