"""Time as a process lived it."""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Monotonic seconds, except those in which this process did not run.

    After a stop (SIGSTOP, a suspended machine, a very long prompt to encode) everybody else seems to have been silent.
    That silence was ours, so it is not counted.
    """

    def __init__(self, longest_turn: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start; a turn of the loop that took more than `longest_turn` seconds was no turn but a stop."""
        self._longest_turn = longest_turn
        self._monotonic = monotonic
        self._last = monotonic()
        self._lost = 0.0
        self.now = self._last
        """The time at the last `turn`."""

    def turn(self) -> float:
        """Return the time now; to be called once each turn of the loop."""
        now = self._monotonic()
        self._lost += max(0.0, now - self._last - self._longest_turn)
        self._last = now
        self.now = now - self._lost
        return self.now
