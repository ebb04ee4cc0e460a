"""Signals that ask a process to end, as something that a poll loop can wait for."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

BROKEN = signal.SIGUSR1
"""Asks like SIGTERM, and says why: a process has died without which nothing can be served."""


class StopSignal:
    """Set once the process is asked to end. Its descriptor becomes readable then, so that no poll sleeps through it.

    `times` counts how often: whoever asks again means at once. `broken` says that it was by `BROKEN`.
    """

    def __init__(self) -> None:
        """Take over SIGTERM, `BROKEN`, and SIGINT and SIGHUP unless they are ignored; only the main thread may do this.

        Children of launch.py ignore SIGINT, and whatever runs under nohup ignores SIGHUP.
        """
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.times = 0
        self.broken = False
        for number in (signal.SIGTERM, BROKEN, signal.SIGINT, signal.SIGHUP):
            if number in (signal.SIGTERM, BROKEN) or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.times += 1
        self.broken = self.broken or number == BROKEN
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
