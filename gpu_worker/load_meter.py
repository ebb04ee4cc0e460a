"""How far loading a model has come, in words and as a share."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE_SECONDS = 0.25
"""How often it is told, at most: a terminal can't be read faster."""


class LoadMeter:
    """Follows the contents of files, `total` bytes of them, into parameters."""

    def __init__(
        self, total: int, share: Callable[[float, str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Let `share` hear which part of all bytes has been read, from 0 to 1, and that in words."""
        self._total = total
        self._share = share
        self._clock = clock
        self._began = self._told = clock()
        self._done = 0.0

    def add(self, share: float) -> None:
        """Count so much of the whole as read; tell, if the last time is long enough ago."""
        self._done += share
        now = self._clock()
        if now - self._told >= SHARE_SECONDS:
            self._told = now
            total, seconds = self._total / 1e9, now - self._began
            read = self._done * total
            left = seconds * (1 / self._done - 1)
            pace = f"{read / seconds:.2f} GB/s, {left:.0f} s left"
            self._share(self._done, f"weights {self._done:4.0%}, {read:.2f} of {total:.2f} GB, {pace}")

    def summary(self) -> str:
        """Return what was read in all, and how fast."""
        seconds = max(self._clock() - self._began, 1e-9)
        return f"read {self._total / 1e9:.2f} GB of weights in {seconds:.1f} s ({self._total / seconds / 1e9:.2f} GB/s)"
