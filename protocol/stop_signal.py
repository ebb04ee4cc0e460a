"""Signals that ask a process to end, as something that a poll loop can wait for."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType


class StopSignal:
    """Set once the process is asked to end. Its descriptor becomes readable then, so that no poll sleeps through it."""

    def __init__(self) -> None:
        """Take over SIGTERM, and SIGINT and SIGHUP unless they are ignored; only the main thread may do this.

        Children of launch.py ignore SIGINT, and whatever runs under nohup ignores SIGHUP.
        """
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.is_set = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        with contextlib.suppress(BlockingIOError):  # so full of signals that it is readable anyway
            os.write(self._write, b"!")

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._read
