"""One job on this machine: what `vm.run` is for a guest."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from heddle_lab import paths
from heddle_lab.errors import HeddleError
from heddle_lab.job import Job
from heddle_lab.native import agent, cgroups, tree
from heddle_lab.results import Results

_NAMESPACES = ("--mount", "--mount-proc", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts")
_AS_USER = ("--user", "--map-root-user")

_GRACE_S = 60.0
"""beyond the job's own limit, for what the agent does around it"""


def run(job: Job, layers: tuple[str, ...], files: dict[str, tuple[int, bytes]]) -> Results:
    """Carry out a job, and return what it reported; its `error` says what failed, if anything did.

    Args:
        job: what to do.
        layers: image layers beside the base.
        files: more files for the userland: path -> (mode, content).

    Raises:
        HeddleError: the userland cannot be unpacked.
    """
    start = time.monotonic()
    userland = tree.unpacked(layers)
    with tempfile.TemporaryDirectory(prefix="heddle-") as name:
        folder = Path(name)
        group = f"heddle-{os.getpid()}"
        task = agent.Task(job=job, tree=userland, group=group)
        (folder / agent.TASK).write_text(task.model_dump_json())
        _write_files(folder / agent.FILES, files)
        try:
            failure = _execute(folder, job.timeout_ns / 1e9 + _GRACE_S)
        finally:
            cgroups.Groups(group).remove()
        lines = (folder / agent.RESULTS).read_text().splitlines() if (folder / agent.RESULTS).is_file() else []
    records = [json.loads(line) for line in lines]
    done = any(record["event"] == "done" for record in records)
    wall_s = round(time.monotonic() - start, 3)
    return Results(records=records, console="", wall_s=wall_s, failure=None if done else failure)


def _write_files(folder: Path, files: dict[str, tuple[int, bytes]]) -> None:
    folder.mkdir()
    for path, (mode, content) in files.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)


def _execute(folder: Path, limit_s: float) -> str:
    """Run the agent; return why it may have ended early."""
    as_user = _AS_USER if os.geteuid() else ()
    command = ["unshare", *as_user, *_NAMESPACES, "--", sys.executable, "-m", agent.__name__, str(folder)]
    known = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(paths.LAB), known)))}
    try:
        # A session of its own: Ctrl-C reaches the runner, which ends the job with all its processes.
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise HeddleError("the host back end needs `unshare` of util-linux") from error
    try:
        _, said = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"the job hung: killed after {limit_s:.0f} s"
    finally:
        child.kill()
        child.wait()
    last = said.strip().splitlines()[-1:] or [f"exit {child.returncode}"]
    return f"the job ended early: {last[0]}"
