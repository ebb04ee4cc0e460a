"""How a frontend ends: it takes nothing new, and what runs may finish, for a while."""

from __future__ import annotations

from math import inf

from frontend.callers import Callers
from frontend.core import BROKEN_DOWN, SHUTTING_DOWN, FrontendCore
from protocol.lifeline import Lifeline
from protocol.stop_signal import StopSignal

FAREWELL_SECONDS = 1.0
"""How long clients have to take the end of requests that were cut off."""


class Drain:
    """From the first request to stop to the end.

        serving ── signal ──► draining ── nothing runs ──► drained ── signal, or nobody who would send one ──► over
                                  └── another signal, or the time is up: all that runs ends with an error ──► over

    Where another process has died nothing that runs can finish, so nobody waits for it.

    Whoever has a parent waits, drained, for its word: the others end first.
    """

    def __init__(
        self, core: FrontendCore, callers: Callers, stop: StopSignal, lifeline: Lifeline, seconds: float
    ) -> None:
        """Watch `stop`; requests of `core` get so many `seconds`."""
        self._core = core
        self._callers = callers
        self._stop = stop
        self._lifeline = lifeline
        self._seconds = seconds
        self._cut_at = inf  # when what still runs is ended
        self._over_at = inf
        self._drained = False
        self.over = False

    def look(self, now: float) -> None:
        """See how far it is."""
        if not self._stop.is_set:
            return
        if not self._core.draining:
            self._core.draining = True
            self._cut_at = now + self._seconds
            if running := max(self._core.owed, len(self._callers)):
                self._lifeline.progress(
                    f"draining: {running} {'request is' if running == 1 else 'requests are'} running"
                )
        cut = now >= self._cut_at or self._stop.times > 1 or self._stop.broken
        if self._over_at == inf and not self._drained and cut:
            self._core.stop(BROKEN_DOWN if self._stop.broken else SHUTTING_DOWN)
            self._over_at = now + FAREWELL_SECONDS
        done = not self._core.owed and not self._callers
        if (done or now >= self._over_at) and not self._drained:
            self._drained = True
            self.over = not self._lifeline.drained()
        self.over = self.over or (self._drained and self._stop.times > 1)
