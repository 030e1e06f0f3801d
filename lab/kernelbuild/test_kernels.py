"""A kernel is built from source, patched, compared and bisected, as a developer of one would.

The patch makes the base slice of EEVDF on four CPUs 3 ms instead of 0.7. What that does was predicted, with its source,
in experiments/parity.toml: wakees wait longer.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from heddle_lab import paths

CONFIG = Path(__file__).with_name("guest.config")

COMMITS = 8
WORSE = 5
"""the commit of the patch"""

BASE, PATCHED = 233_333, 1_000_000
"""ns; the kernel takes three times as much on four CPUs (sysctl_sched_tunable_scaling)"""

SLICE = re.compile(r"(sysctl_sched_base_slice\s*= )\d+ULL")


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def git(tree: Path, *words: str) -> str:
    return run("git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words, cwd=tree)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a git tree of eight commits, the fifth of which is the patch."""
    folder = tmp_path_factory.mktemp("source") / "linux"
    run(sys.executable, "-m", "setup", "kernel", "--source", str(folder), cwd=paths.REPOSITORY)
    run("./heddle-make", "-s", "tinyconfig", cwd=folder)
    run("sh", "scripts/kconfig/merge_config.sh", "-m", ".config", str(CONFIG), cwd=folder)
    run("./heddle-make", "-s", "olddefconfig", cwd=folder)
    made = (folder / ".config").read_text().splitlines()
    assert [line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_") and line not in made] == []
    git(folder, "init", "-q", "-b", "main")
    fair = folder / "kernel/sched/fair.c"
    source = fair.read_text()
    assert len(SLICE.findall(source)) == 2
    for number in range(1, COMMITS + 1):
        ns = PATCHED if number >= WORSE else BASE
        fair.write_text(SLICE.sub(rf"\g<1>{ns}ULL", source) + f"/* change {number} */\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"change {number}")
        git(folder, "tag", f"v{number}")
    return folder


def test_a_patch_is_found_among_eight_commits(tree: Path) -> None:
    words = ["bisect", str(tree), "--good", "v1", "--bad", f"v{COMMITS}", "--smallest", "10%"]
    words += ["--build", "./heddle-make -s olddefconfig && ./heddle-make -s -j2 bzImage"]
    words += ["--workload", "schbench", "--param", "load=1.25", "--param", "request_insns=1000000", "--seeds", "6"]
    said = run(sys.executable, "-m", "heddle_lab", *words, cwd=paths.REPOSITORY)
    assert said.splitlines()[-1].endswith(f"change {WORSE}"), said
    assert len(re.findall(r"^bad: schbench .*wakeup_latency_ns.p99 \+", said, re.MULTILINE)) >= 2
    assert len(re.findall(r"^good: schbench ", said, re.MULTILINE)) >= 1
    assert git(tree, "symbolic-ref", "--short", "HEAD") == "main\n"
