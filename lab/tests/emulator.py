"""A stand-in for QEMU: what surrounds a guest (store, runner, command line) is tested without one.

It reads its own command line as QEMU does, notes that it started, takes a while, and writes what a guest would have
written to its ports. What happens is decided by the seed of the cell.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from heddle_lab import payload

LAB = Path(__file__).resolve().parents[1]

JOB_PAGE = payload.PART_BYTES // 4096 + 1
"""where the archive with the job begins"""

SCRIPT = """#!/bin/sh
payload= folder= console=
while [ $# -gt 0 ]; do
  case $1 in
    memory-backend-file,*) payload=${1##*mem-path=};;
    file,id=port1,path=*) folder=$(dirname "${1#file,id=port1,path=}");;
    file,id=console,path=*) console=${1#file,id=console,path=};;
  esac
  shift
done
console=${console%,append=on}
job=$(dd if="$payload" bs=4096 skip=JOB_PAGE count=64 status=none | tar -xO heddle/job.json 2>&-)
seed=$(echo "$job" | sed 's/.*"seed":\\([0-9]*\\).*/\\1/')
echo "$seed $$" >> BOOTS
sleep SECONDS
[ -e SCRIPTS/$seed ] && . SCRIPTS/$seed
cat RECORDS > "$folder/results.jsonl"
"""

MACHINE = """
name = "plain-4"
summary = "4 CPUs"
source = "a stand-in has no kernel whose task switches could be seen"
memory_mib = 1024
topology = { cores = 4 }
"""

RECORDS = [
    {"event": "ready", "virtual_ns": 1, "cpus": 4, "kernel": "7.3.0-test", "topology": []},
    {"event": "step", "name": "hackbench", "virtual_ns": 3, "exit": 0, "elapsed_ns": 2, "stdout": "", "stderr": ""},
    {"event": "done", "virtual_ns": 4},
]


class Emulator:
    """Installs the stand-in in a cache and tells what it did."""

    def __init__(self, cache: Path, seconds: float = 0.0) -> None:
        self.cache = cache
        self._boots = cache / "boots"
        self._scripts = cache / "scripts"
        self._scripts.mkdir()
        records = cache / "records"
        records.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
        self.machine = cache / "plain-4.toml"
        self.machine.write_text(MACHINE)
        names = {
            "BOOTS": self._boots,
            "SCRIPTS": self._scripts,
            "RECORDS": records,
            "SECONDS": seconds,
            "JOB_PAGE": JOB_PAGE,
        }
        text = SCRIPT
        for name, value in names.items():
            text = text.replace(name, str(value))
        program = cache / "qemu/one/bin/qemu-system-x86_64"
        program.write_text(text)
        program.chmod(0o755)

    def on_seed(self, seed: int, shell: str) -> None:
        """Do something else for a seed: shell code that knows `$folder` and `$console`."""
        (self._scripts / str(seed)).write_text(shell.replace("RECORDS", str(self.cache / "records")))

    def boots(self) -> list[int]:
        """Return the seeds of all guests that were started, in order."""
        return [int(line.split()[0]) for line in self._lines()]

    def running(self) -> list[int]:
        """Return the processes that still run."""
        return [pid for pid in (int(line.split()[1]) for line in self._lines()) if Path(f"/proc/{pid}/fd").exists()]

    def cells(self) -> int:
        """Return how many cells the store has."""
        return len(list((self.cache / "cells").rglob("*.json.zst")))

    def environment(self) -> dict[str, str]:
        """Return the environment of commands that use this cache."""
        temporary = self.cache / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"HEDDLE_CACHE": str(self.cache), "PYTHONPATH": str(LAB), "TMPDIR": str(temporary)}
        return {**os.environ, **own}

    def command(self, seeds: int, *more: str) -> list[str]:
        """Return a command that measures one cell per seed."""
        load = ["--workload", "hackbench", "--sched", "eevdf", "--kernel", "7.3"]
        load += ["--machine", str(self.machine)]
        run = ["run", "--cold", *load, "--seeds", str(seeds), "--out", str(self.cache / "out"), *more]
        return [sys.executable, "-m", "heddle_lab", *run]

    def start(self, seeds: int, *more: str, limit_bytes: int | None = None) -> "subprocess.Popen[str]":
        """Start that command in a process group of its own; no file may grow beyond the limit."""
        limit = ["prlimit", f"--fsize={limit_bytes}"] if limit_bytes else []
        return subprocess.Popen(
            [*limit, "env", "--default-signal=INT", *self.command(seeds, *more)],
            env=self.environment(),
            cwd=self.cache,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, seeds: int, *more: str, limit_bytes: int | None = None) -> "subprocess.CompletedProcess[str]":
        """Run that command to its end."""
        process = self.start(seeds, *more, limit_bytes=limit_bytes)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def _lines(self) -> list[str]:
        return self._boots.read_text().splitlines() if self._boots.exists() else []
