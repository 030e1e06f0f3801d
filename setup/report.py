"""What set-up says: progress lines, and errors of one line."""

from __future__ import annotations

import sys
import threading
import time


class SetupError(Exception):
    """A failure the user can mend: one line that names the offender and the mend."""


class Progress:
    """Prints `seconds  stage  what` lines; safe to call from several stages at once."""

    def __init__(self) -> None:
        """Start the clock."""
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def say(self, stage: str, what: str) -> None:
        """Print one line for STAGE, stamped with the seconds since set-up began."""
        seconds = time.monotonic() - self._start
        with self._lock:
            print(f"{seconds:7.1f} s  {stage:<10} {what}", file=sys.stderr, flush=True)
