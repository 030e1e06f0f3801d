"""Files of recorders: which kind each is, and the sched events in it.

Text is read as it is. What is binary goes through its recorder's own program, `perf script` or `trace-cmd report`; a
trace of Perfetto is read here. Each of them may be compressed by gzip, xz or zstd.
"""

import gzip
import lzma
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zstandard

from heddle_lab.errors import HeddleError
from heddle_lab.measures import ftrace, perfettoscript, perfscript
from heddle_lab.measures.events import Events


class Trace(NamedTuple):
    """What a file says."""

    events: Events
    unread: list[str]
    """lines of switches and wakeups that are not understood"""


class _Recorder(NamedTuple):
    """A program that makes text of what it recorded."""

    what: str
    package: str
    """Debian's"""
    command: tuple[str, ...]
    """the file's name goes behind it"""


_RECORDERS = {
    b"PERFILE2": _Recorder("perf's binary", "linux-perf", ("perf", "script", "-f", "-i")),
    b"\x17\x08\x44tracing": _Recorder("trace-cmd's binary", "trace-cmd", ("trace-cmd", "report", "-t", "-i")),
}
"""by the first bytes of their files"""

_PACKED: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"\xfd7zXZ\0": lzma.decompress,
    b"\x28\xb5\x2f\xfd": lambda content: zstandard.ZstdDecompressor().decompressobj().decompress(content),
}
"""by the first bytes"""


def read(file: Path) -> Trace:
    """Return the sched events of a file.

    Raises:
        HeddleError: it cannot be read; its recorder's program is missing or refuses it; or a CPU's clock goes back.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise HeddleError(f"{file}: {error.strerror}") from error
    content = _unpacked(content, file)
    for magic, recorder in _RECORDERS.items():
        if content.startswith(magic):
            return of_text(_text_by(recorder, content, file), str(file))
    if perfettoscript.is_trace(content):
        try:
            return Trace(perfettoscript.parse(content), [])
        except ValueError as error:
            raise HeddleError(f"{file}: neither text nor a whole trace of perf, trace-cmd or Perfetto") from error
    return of_text(content.decode("utf-8", "surrogateescape"), str(file))


def of_text(text: str, where: str) -> Trace:
    """Return the events in the text of `perf sched script`, `perf script`, `trace-cmd report` or tracefs's `trace`.

    Args:
        text: the events; bytes that are no UTF-8 as `surrogateescape` decodes them: names of tasks are any bytes.
        where: the file's name, for errors.

    Raises:
        HeddleError: a CPU's clock goes back.
    """
    script = perfscript.read(text)
    if script.jump:
        mend = "give one recording at a time, by a clock that does not jump: `-k mono` (perf), `-C mono` (trace-cmd)"
        raise HeddleError(f"{where}: {script.jump}: {mend}")
    return Trace(ftrace.parse(script.ftrace), script.unread)


def _unpacked(content: bytes, file: Path) -> bytes:
    for magic, unpack in _PACKED.items():
        if content.startswith(magic):
            try:
                return unpack(content)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                raise HeddleError(f"{file}: cannot be unpacked: {error}") from error
    return content


def _text_by(recorder: _Recorder, content: bytes, file: Path) -> str:
    """Return the text that a recorder's program makes of what it recorded."""
    program = shutil.which(recorder.command[0])
    if program is None:
        command = " ".join(recorder.command)
        raise HeddleError(
            f"{file}: {recorder.what}, and no {recorder.command[0]} here reads it: install {recorder.package}, or run "
            f"`{command} {file.name} > trace.txt` on the recorded machine and give trace.txt"
        )
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(content)
        copy.flush()
        command_line = [program, *recorder.command[1:], copy.name]
        done = subprocess.run(command_line, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise HeddleError(f"{file}: {recorder.command[0]} cannot read it: {said[-1].replace(copy.name, file.name)}")
    return done.stdout.decode("utf-8", "surrogateescape")
