"""Many cells at once: Dask workers boot guests, this process keeps every result as it comes."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import dask
from distributed import Client, KilledWorker, LocalCluster, as_completed

from heddle_lab import memory, paths, scratch, vm
from heddle_lab.cell import Cell
from heddle_lab.errors import HeddleError
from heddle_lab.history import History
from heddle_lab.results import Results
from heddle_lab.store import Store, StoreError
from heddle_lab.tomlfile import Model

_OVERHEAD_MIB = 512
"""what a QEMU takes beside the guest's memory: translated code, the initrd, a worker process"""


_PATIENCE_S = 300
"""for a worker of this machine that is slow to start or to answer, as beside other work"""

_LOCAL = {
    "distributed.logging.distributed": "error",
    "distributed.comm.timeouts.connect": f"{_PATIENCE_S}s",
    "distributed.comm.timeouts.tcp": f"{_PATIENCE_S}s",
    # A worker of this machine that dies is seen at once; one that is slow to answer, as when the host sleeps, lives.
    "distributed.scheduler.worker-ttl": None,
}


_CHANGED = "kernel, QEMU, image or scheduler changed while the run went on (another `make setup`?): run again"
"""what a cell is called by would no longer be what it is"""


class Plan(Model):
    """What a run has to do; given to the caller before the first cell."""

    missing: int
    """cells to measure; none: all were measured before"""
    stored: int
    """cells that were measured before"""
    jobs: int
    """guests at a time"""
    expected_s: float | None
    """wall seconds that it takes, if cells cost what those before did; none: there were none"""


class Progress(Model):
    """How far a run is; given to the caller whenever a cell ends."""

    done: int
    total: int
    cell: str
    failed: bool
    remaining_s: float | None
    """estimate of the wall time left; none at the end"""


class Failure(Model):
    """A cell that gave no result."""

    cell: str
    error: str


class Outcome(Model):
    """What a run brought: results by cell key, and failures."""

    results: dict[str, Results]
    failures: list[Failure]
    interrupted: bool
    """Ctrl-C ended the run; what was done is kept"""


class _Here(NamedTuple):
    """Folders of the client, for workers on its host."""

    scratch: Path
    store: Path


class Runner:
    """Measures the cells that the store lacks."""

    def __init__(
        self,
        store: Store,
        *,
        jobs: int | None = None,
        dask_address: str | None = None,
        fresh: bool = False,
        cold: bool = False,
        announce: Callable[[Plan], None] = lambda _: None,
        report: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """Set up a runner.

        Args:
            store: where results are looked up and kept.
            jobs: guests at a time on this machine; none: one per core, fewer if memory is short.
            dask_address: a running Dask scheduler to use instead, such as `tcp://host:8786`.
            fresh: measure again what the store already has, and insist on the same result.
            cold: boot each guest instead of going on from a snapshot.
            announce: called before the first cell.
            report: called whenever a cell ends.
        """
        self._store = store
        self._jobs = jobs
        self._dask_address = dask_address
        self._fresh = fresh
        self._cold = cold
        self._announce = announce
        self._report = report
        self._history = History(store.folder)

    def run(self, cells: list[Cell]) -> Outcome:
        """Measure cells and return their results, in the order of the cells.

        Raises:
            HeddleError: no guest fits into memory, the Dask scheduler cannot be reached, or a result cannot be kept.
        """
        keyed = {cell.key(): cell for cell in cells}
        results = {} if self._fresh else {key: found for key in keyed if (found := self._store.get(key))}
        missing = {key: cell for key, cell in keyed.items() if key not in results}
        failures: list[Failure] = []
        interrupted = False
        if not missing:
            self._announce(Plan(missing=0, stored=len(results), jobs=0, expected_s=0))
        else:
            try:
                with self._client(missing) as (client, here):
                    self._announce(self._plan(client, missing, len(results)))
                    for key, result in self._measure(client, here, missing, len(results)):
                        if isinstance(result, Results):
                            results[key] = result
                        else:
                            failures.append(Failure(cell=missing[key].label, error=result))
            except KeyboardInterrupt:
                interrupted = True
                # Workers keep their results themselves; some may have ended meanwhile.
                if not self._fresh:
                    results |= {key: found for key in missing if (found := self._store.get(key))}
        changed = {key for key, cell in keyed.items() if key in results and cell.key() != key}
        failures += [Failure(cell=keyed[key].label, error=_CHANGED) for key in changed]
        ordered = {key: results[key] for key in keyed if key in results and key not in changed}
        return Outcome(results=ordered, failures=failures, interrupted=interrupted)

    def _plan(self, client: Any, missing: dict[str, Cell], stored: int) -> Plan:
        jobs = max(1, min(len(missing), len(client.scheduler_info()["workers"])))
        costs = [self._history.expected_s(cell) for cell in missing.values()]
        expected_s = None if None in costs else sum(filter(None, costs)) / jobs
        return Plan(missing=len(missing), stored=stored, jobs=jobs, expected_s=expected_s)

    def _measure(
        self, client: Any, here: _Here | None, missing: dict[str, Cell], already: int
    ) -> Iterator[tuple[str, Results | str]]:
        """Yield each cell's key with its results, or with the line that says why there are none."""
        start = time.monotonic()
        # Pure by content: the key names the work, so that a lost worker's cells are done again elsewhere.
        futures = [
            client.submit(_boot, cell, key, here, self._fresh, self._cold, key=f"heddle-{key}")
            for key, cell in missing.items()
        ]
        for done, future in enumerate(as_completed(futures), start=1):
            key = future.key.removeprefix("heddle-")
            result: Results | str = self._keep(key, _outcome(future))
            if isinstance(result, Results):
                self._history.add(missing[key], result.wall_s)
            left = len(missing) - done
            elapsed = time.monotonic() - start
            self._report(
                Progress(
                    done=already + done,
                    total=already + len(missing),
                    cell=missing[key].label,
                    failed=isinstance(result, str),
                    remaining_s=elapsed / done * left if left else None,
                )
            )
            yield key, result

    def _keep(self, key: str, result: Results | str) -> Results | str:
        if isinstance(result, str) or result.error:
            return result if isinstance(result, str) else str(result.error)
        if self._fresh and (old := self._store.get(key)) and old.records != result.records:
            return "not reproducible: the same inputs gave another result before"
        self._store.put(key, result)
        return result

    @contextmanager
    def _client(self, missing: dict[str, Cell]) -> Iterator[tuple[Any, _Here | None]]:
        """Give a Dask client and, for workers on this machine, the folders that they share with it."""
        if self._dask_address:
            with _connect(self._dask_address) as client:
                yield client, None
            return
        workers = min(self._workers(missing), len(missing))
        with (
            scratch.folder() as folder,
            dask.config.set(_LOCAL),
            _start_workers(workers, folder) as cluster,
            Client(cluster) as client,
        ):
            yield client, _Here(folder, self._store.folder)

    def _workers(self, missing: dict[str, Cell]) -> int:
        """Return how many guests may run at a time without running out of memory."""
        need = max(_need_mib(cell) for cell in missing.values())
        free = memory.available_mib()
        if need > free:
            raise HeddleError(f"not enough memory for one guest: {need} MiB needed, {free} MiB free")
        cores = len(os.sched_getaffinity(0))
        return max(1, min(self._jobs or cores, free // need))


def _start_workers(number: int, folder: Path) -> Any:
    """Start a cluster on this machine whose workers do not hear Ctrl-C: what it ends is for this process to decide.

    Processes and threads inherit the mask. A Ctrl-C while they start waits until they have.

    Raises:
        HeddleError: they do not start.
    """
    resource_tracker.ensure_running()  # started on demand, it would unblock the signal for the worker's thread
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            processes=True,
            local_directory=folder,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ":0"},  # its HTTP server listens all the same: on any free port
            memory_limit=0,
            silence_logs=50,
        )
    except TimeoutError as error:
        raise HeddleError(
            f"the workers did not start within {_PATIENCE_S} s: is this machine too busy? run again"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _need_mib(cell: Cell) -> int:
    return cell.machine.memory_mib + _OVERHEAD_MIB


def _boot(cell: Cell, key: str, here: _Here | None, fresh: bool, cold: bool) -> Results:
    """Measure one cell; runs in a worker, on whatever host that is.

    The worker keeps the result too: it may die, or its client may, before the client has fetched it.

    Args:
        cell: the cell.
        key: its name, as the client computed it.
        here: the client's folders; none if the worker is on another host.
        fresh: measure although this host knows the result.
        cold: boot, without snapshots.

    Raises:
        HeddleError: this host has other inputs than the one that asks, or no memory for the guest.
    """
    if cell.key() != key:
        elsewhere = f"worker {socket.gethostname()} has another kernel, QEMU, image or scheduler: "
        raise HeddleError(_CHANGED if here else f"{elsewhere}run `make setup` there at the same commit")
    store = Store(here.store if here else paths.cells())
    if not fresh and (known := store.get(key)):
        return known
    with memory.reserved(_need_mib(cell), paths.memory_ledger()):
        results = vm.run(cell.guest(), scratch=here.scratch if here else None, cold=cold)
    if not fresh and not results.error:
        store.put(key, results)
    return results


def _outcome(future: Any) -> Results | str:
    error = future.exception()
    if error is None:
        results: Results = future.result()
        return results
    if isinstance(error, StoreError):  # more cells would be lost like this one
        raise error
    if isinstance(error, KilledWorker):
        return f"its worker died {error.allowed_failures + 1} times: see the workers' own output"
    return str(error) if isinstance(error, HeddleError) else f"{type(error).__name__}: {' '.join(str(error).split())}"


def _connect(address: str) -> Any:
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise HeddleError(f"no Dask scheduler at {address}: {error}") from error
