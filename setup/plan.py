"""Running stages: each as soon as those it needs are done, two at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from . import process
from .context import Context
from .report import SetupError
from .stages import Stage

# One stage compiles while another downloads; compilers run one job a CPU anyway.
AT_ONCE = 2


def select(stages: Sequence[Stage], names: Iterable[str]) -> list[Stage]:
    """The stages called NAMES and all that they need, in order.

    For no names, all of them but those on demand.
    """
    by_name = {stage.name: stage for stage in stages}
    wanted: set[str] = set()
    queue = list(names) or [stage.name for stage in stages if not stage.on_demand]
    while queue:
        name = queue.pop()
        if name not in by_name:
            raise SetupError(f"no stage {name}: there are {', '.join(by_name)}")
        if name not in wanted:
            wanted.add(name)
            queue += by_name[name].needs
    return [stage for stage in stages if stage.name in wanted]


def run(stages: Sequence[Stage], context: Callable[[str], Context]) -> None:
    """Run STAGES in an order that their needs allow; the first failure stops all."""
    done: set[str] = set()
    waiting = list(stages)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[Future[None], Stage] = {}
        try:
            while waiting or running:
                for stage in [s for s in waiting if done.issuperset(s.needs)]:
                    if len(running) < AT_ONCE:
                        waiting.remove(stage)
                        running[pool.submit(_timed, stage, context(stage.name))] = stage
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    stage = running.pop(future)
                    future.result()
                    done.add(stage.name)
        except BaseException:
            process.stop_all()
            raise


def _timed(stage: Stage, context: Context) -> None:
    start = time.monotonic()
    with context.alone():
        stage.run(context)
    context.say(f"ready ({time.monotonic() - start:.1f} s)")
