"""QEMU's machine protocol (docs/interop/qmp-spec.rst), as far as saving a machine takes it."""

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from heddle_lab.errors import HeddleError

_POLL_S = 0.01


class Monitor:
    """The host's end of a QEMU's monitor; the other end is `fd`, which QEMU inherits."""

    def __init__(self) -> None:
        """Make a pair of sockets."""
        self._socket, self._other = socket.socketpair()
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def __enter__(self) -> Self:
        """Return the monitor, which is closed at the end of the context."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close both ends."""
        for end in (self._lines, self._socket, self._other):
            end.close()

    @property
    def fd(self) -> int:
        """The descriptor for QEMU."""
        return self._other.fileno()

    def arguments(self) -> list[str]:
        """Return QEMU's options for its end."""
        return ["-chardev", f"socket,id=monitor,fd={self.fd}", "-mon", "chardev=monitor,mode=control"]

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait until the machine stops; false: QEMU ended before.

        Raises:
            TimeoutError: neither happened in time.
        """
        self._other.close()  # QEMU has its own; now its end is seen here
        self._socket.settimeout(timeout_s)
        self._send("qmp_capabilities")
        return any(message.get("event") == "STOP" for message in iter(self._message, None))

    def save(self, path: Path) -> None:
        """Write the state of a stopped machine to a file, and end QEMU.

        Raises:
            HeddleError: QEMU cannot write it.
        """
        self._ask("migrate", uri=f"file:{path}")
        while (status := self._ask("query-migrate"))["status"] != "completed":
            if status["status"] == "failed":
                raise _refusal(status.get("error-desc"))
            time.sleep(_POLL_S)
        self._send("quit")

    def _ask(self, command: str, **arguments: str) -> Any:
        self._send(command, **arguments)
        for message in iter(self._message, None):
            if "error" in message:
                raise _refusal(message["error"]["desc"])
            if "return" in message:
                return message["return"]
        raise _refusal("QEMU died")

    def _send(self, command: str, **arguments: str) -> None:
        with suppress(BrokenPipeError):  # QEMU has ended, which the next message tells
            self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())

    def _message(self) -> dict[str, Any] | None:
        """Return QEMU's next message, none when it has ended."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = ""
        message: dict[str, Any] | None = json.loads(line) if line else None
        return message


def _refusal(why: str | None) -> HeddleError:
    return HeddleError(f"cannot keep a snapshot: {why}; --cold runs without one")
