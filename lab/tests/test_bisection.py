"""`heddle verdict` and `heddle bisect`: git trees whose builds are stand-ins, and whose guests are the emulator's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heddle_lab import bisection, criterion, stats, workload
from heddle_lab.bisection import Tree
from heddle_lab.criterion import Criterion
from heddle_lab.errors import HeddleError
from tests.conftest import bzimage
from tests.emulator import Emulator
from tests.test_identity import tree as built

COMMITS = 8
"""of the tree; from `WORSE` on, hackbench takes longer"""

WORSE = 5

CRITERION = ["--workload", "hackbench", "--seeds", "6"]

# What it builds: a bzImage of the release that LOCALVERSION asks for, with the tree's source as its tail.
BUILD = """#!/bin/sh
grep -q broken source && { echo no such symbol; exit 1; }
mkdir -p arch/x86/boot
sed "s/@@@@@@@@@@@@@/$LOCALVERSION/" image > arch/x86/boot/bzImage
cat source >> arch/x86/boot/bzImage
"""

# A kernel's guests take longer if its source says so; what QEMU boots is the image, after -kernel.
GUEST = """
kernel=$(echo "$arguments" | sed 's/.*-kernel \\([^ ]*\\).*/\\1/')
if grep -aq panics "$kernel"; then
  echo 'Kernel panic - not syncing: no root' > $console
  exit 0
fi
grep -aq slow "$kernel" && ns=3000001 || ns=2000001
sed "s/\\"elapsed_ns\\": 2/\\"elapsed_ns\\": $ns/" RECORDS > "$folder/results.jsonl"
exit 0
"""


@pytest.fixture
def emulator(cache: Path) -> Emulator:
    found = Emulator(cache)
    program = cache / "qemu/one/bin/qemu-system-x86_64"
    text = program.read_text()
    program.write_text(text.replace("#!/bin/sh\n", '#!/bin/sh\narguments="$*"\n', 1))
    for seed in range(1, 7):
        found.on_seed(seed, GUEST)
    return found


def git(tree: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    done = subprocess.run(["git", *identity, *words], cwd=tree, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commits(folder: Path, sources: list[str]) -> Path:
    """Make a tree with a commit for each of some sources, and a tag v1, v2... for each."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("arch\n.config\n")
    (folder / "image").write_bytes(bzimage("6.99.0@@@@@@@@@@@@@"))
    (folder / "build").write_text(BUILD)
    (folder / ".config").write_text("CONFIG_HZ=250\n")
    for number, source in enumerate(sources, start=1):
        (folder / "source").write_text(source)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"change {number}")
        git(folder, "tag", f"v{number}")
    return folder


def heddle(emulator: Emulator, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "heddle_lab", *words],
        env=emulator.environment(),
        cwd=emulator.cache,
        capture_output=True,
        text=True,
        check=False,
    )


def bisect(emulator: Emulator, tree: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    words = ["bisect", str(tree), "--build", "sh build", "--machine", str(emulator.machine)]
    ends = ["--good", "v1", "--bad", f"v{COMMITS}"] if "--good" not in more else []
    return heddle(emulator, *words, *CRITERION, *ends, *more)


def sources(**at: str) -> list[str]:
    """Return a tree's history; what is said of a commit, as `c3`, is in its source."""
    return [
        f"source {number} {'slow' if number >= WORSE else 'fast'} {at.get(f'c{number}', '')}\n"
        for number in range(1, COMMITS + 1)
    ]


def test_the_first_bad_commit_is_found(emulator: Emulator) -> None:
    tree = commits(emulator.cache / "linux", sources())
    done = bisect(emulator, tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"change {WORSE}")
    assert done.stdout.splitlines()[-1].startswith("first bad commit: ")
    assert "bad: hackbench elapsed_ns +50.0 %" in done.stdout
    assert git(tree, "symbolic-ref", "--short", "HEAD") == "main"
    assert git(tree, "status", "--porcelain") == ""
    assert len(emulator.boots()) < 6 * COMMITS


def test_what_cannot_be_built_or_booted_is_passed_over(emulator: Emulator) -> None:
    tree = commits(emulator.cache / "linux", sources(c4="broken", c6="panics"))
    done = bisect(emulator, tree)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot build" in done.stderr
    assert done.stderr.endswith("heddle: the commits above cannot be told apart; more --seeds may tell\n")
    assert git(tree, "symbolic-ref", "--short", "HEAD") == "main"


def test_ends_that_do_not_differ(emulator: Emulator) -> None:
    tree = commits(emulator.cache / "linux", sources())
    done = bisect(emulator, tree, "--good", "v1", "--bad", "v3")
    assert done.returncode == 1
    assert done.stderr.endswith("heddle: v3 is not found to be worse than v1 (above): nothing to bisect\n")
    assert git(tree, "symbolic-ref", "--short", "HEAD") == "main"


def dirty(tree: Path) -> None:
    (tree / "source").write_text("changed")


def without_config(tree: Path) -> None:
    (tree / ".config").unlink()


def in_bisection(tree: Path) -> None:
    git(tree, "bisect", "start")


def as_it_is(tree: Path) -> None:
    assert tree.is_dir()


@pytest.mark.parametrize(
    ("change", "more", "complaint"),
    [
        (dirty, [], "files differ from their commit; commit or stash them"),
        (without_config, [], "no .config: configure the kernel first"),
        (in_bisection, [], "a bisection is under way; end it by `git bisect reset`"),
        (as_it_is, ["--good", "v1", "--bad", "nosuch"], "no commit 'nosuch'"),
        (as_it_is, ["--good", "v1", "--bad", "v2", "--build", "false"], "change 1: `false` failed, see "),
        (
            as_it_is,
            ["--good", "v1", "--bad", "v2", "--build", "true"],
            "not a tree where `make bzImage` built a kernel",
        ),
    ],
)
def test_trees_that_cannot_be_bisected(emulator: Emulator, change: object, more: list[str], complaint: str) -> None:
    tree = commits(emulator.cache / "linux", sources()[:2])
    assert callable(change)
    change(tree)
    done = bisect(emulator, tree, *(more or ["--good", "v1", "--bad", "v2"]))
    assert done.returncode == 1
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert emulator.boots() == []


def verdict(emulator: Emulator, tree: str, against: str, *more: str) -> "subprocess.CompletedProcess[str]":
    words = ["verdict", tree, "--against", against, "--machine", str(emulator.machine)]
    return heddle(emulator, *words, *(more or CRITERION))


def kernel(folder: Path, word: str) -> str:
    """Make a built tree whose release and content have a word."""
    name = built(folder, b"")
    (folder / "arch/x86/boot/bzImage").write_bytes(bzimage(f"6.99.0-{word}"))
    return name


@pytest.mark.parametrize(
    ("word", "status", "line"),
    [
        ("slow", criterion.BAD, "bad: hackbench elapsed_ns +50.0 %"),
        ("same", criterion.GOOD, "good: hackbench elapsed_ns ±0.0 %"),
        ("panics", criterion.SKIP, "the guest's kernel panicked"),
    ],
)
def test_exit_status_is_what_git_bisect_run_wants(emulator: Emulator, word: str, status: int, line: str) -> None:
    done = verdict(emulator, kernel(emulator.cache / word, word), "7.3")
    assert (done.returncode, line in done.stdout) == (status, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("against", "more", "complaint"),
    [
        ("5.4", CRITERION, "unknown kernel '5.4'"),
        ("7.3", ["--workload", "nosuch"], "unknown workload 'nosuch'"),
        ("7.3", [*CRITERION, "--metric", "speed"], "workload 'hackbench' has no metric 'speed'; known: elapsed_ns"),
        ("7.3", ["--seeds", "6"], "Missing option '--workload'"),
        ("7.3", [*CRITERION, "--seeds", "2"], "Invalid value for '--seeds'"),
    ],
)
def test_a_wrong_question_ends_the_bisection(emulator: Emulator, against: str, more: list[str], complaint: str) -> None:
    done = verdict(emulator, kernel(emulator.cache / "tree", "x"), against, *more)
    assert (done.returncode, done.stderr.count("\n")) == (criterion.ABORT, 1)
    assert complaint in done.stderr


def test_two_trees_of_one_release(emulator: Emulator) -> None:
    one, other = built(emulator.cache / "one", b"-O2"), built(emulator.cache / "other", b"-O3")
    done = verdict(emulator, one, other)
    assert done.returncode == criterion.ABORT
    assert f"two different kernels are called '6.99.0-mine': {other} and {one}; build one with" in done.stderr


def test_a_reference_that_cannot_be_measured_ends_the_bisection(emulator: Emulator) -> None:
    one = kernel(emulator.cache / "one", "panics")
    done = verdict(emulator, kernel(emulator.cache / "other", "same"), one)
    assert done.returncode == criterion.ABORT
    assert "the kernel to compare with cannot be measured: the guest's kernel panicked" in done.stdout


def test_another_metric_decides() -> None:
    load = workload.load("schbench").judged_by("throughput")
    params = load.parameters({})
    assert load.primary(params) == "throughput"
    with pytest.raises(HeddleError, match="workload 'schbench' has no metric 'speed'; known: throughput, wakeup"):
        load.judged_by("speed")


def test_the_words_say_the_criterion() -> None:
    wanted = Criterion(workload="schbench", params={"load": 1.25}, metric="throughput", smallest=0.05, seeds=12)
    assert " ".join(wanted.words()) == (
        "--workload schbench --machine smp-4 --sched eevdf --smallest 5% --seeds 12 --param load=1.25 "
        "--metric throughput"
    )
    assert Criterion(workload="hogs").seeds >= stats.FEWEST


def test_builds_are_reproducible_and_named_by_their_commit(tmp_path: Path) -> None:
    tree = commits(tmp_path / "linux", sources()[:1])
    assert Tree(tree).build("env > made") == ""
    made = (tree / "made").read_text().splitlines()
    assert f"LOCALVERSION=-{git(tree, 'rev-parse', 'HEAD')[:12]}" in made
    assert "KBUILD_BUILD_TIMESTAMP=@0" in made
    assert f"-j{len(os.sched_getaffinity(0))} " in bisection.BUILD
