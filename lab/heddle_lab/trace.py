"""Tracepoints as the guest sends them: ftrace's text format, one block per traced step."""

import json
import re
from typing import NamedTuple

from heddle_lab.errors import HeddleError


class TraceEvent(NamedTuple):
    """One tracepoint hit."""

    cpu: int
    time_ns: int
    """CLOCK_MONOTONIC of the guest, to the microsecond"""
    event: str
    """without its system, such as `sched_switch`"""
    comm: str
    """the task that was running"""
    pid: int
    fields: dict[str, str]


# Documentation/trace/ftrace.rst, "Output format":   comm-pid  [cpu] flags  seconds.micros: event: fields
_LINE = re.compile(
    r"^\s*(?P<comm>.*\S)-(?P<pid>\d+)\s+\[(?P<cpu>\d+)\]\s+\S+\s+(?P<seconds>\d+)\.(?P<fraction>\d+):"
    r"\s+(?P<event>\w+):\s?(?P<fields>.*)$"
)
# A value may hold spaces (comm); it ends before the next `name=` or before sched_switch's arrow.
_FIELD = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|\s+==>|\s*$)")


def parse(text: str, step: str | None = None) -> list[TraceEvent]:
    """Parse what came through the guest's trace port.

    Args:
        text: blocks of ftrace's text, each after a line `{"step", "cpus", "lost"}`.
        step: only this step's block; none: all blocks.

    Returns:
        The events in order of time.

    Raises:
        HeddleError: a wanted block lacks events that found no room in the buffers.
    """
    hits = []
    wanted = False
    for line in text.splitlines():
        if line.startswith("{"):
            header = json.loads(line)
            wanted = "step" in header and step in (None, header["step"])
            if wanted and header["lost"]:
                raise HeddleError(
                    f"step '{header['step']}': {header['lost']} trace events were lost; raise the trace's buffer_kb"
                )
        elif wanted and (match := _LINE.match(line)):
            hits.append(_event(match))
    return sorted(hits, key=lambda hit: hit.time_ns)


def _event(match: re.Match[str]) -> TraceEvent:
    return TraceEvent(
        cpu=int(match["cpu"]),
        time_ns=int(match["seconds"]) * 1_000_000_000 + int(match["fraction"].ljust(9, "0")),
        event=match["event"],
        comm=match["comm"],
        pid=int(match["pid"]),
        fields=dict(_FIELD.findall(match["fields"])),
    )
