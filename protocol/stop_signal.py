"""Signals that ask a process to end, as something that a poll loop can wait for."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType


class StopSignal:
    """Set once the process is asked to end. Its descriptor becomes readable then, so that no poll sleeps through it.

    `times` counts how often: whoever asks again means at once.
    """

    def __init__(self) -> None:
        """Take over SIGTERM, and SIGINT and SIGHUP unless they are ignored; only the main thread may do this.

        Children of launch.py ignore SIGINT, and whatever runs under nohup ignores SIGHUP.
        """
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.times = 0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.times += 1
        with contextlib.suppress(BlockingIOError):  # so full of signals that it is readable anyway
            os.write(self._write, b"!")

    @property
    def is_set(self) -> bool:
        """Whether the process is asked to end."""
        return self.times > 0

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._read

    def hush(self) -> None:
        """Let the descriptor be readable again only at the next signal; it must be readable now."""
        os.read(self._read, 2**16)
