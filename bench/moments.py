"""When tokens came to a client, request by request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Of as many requests as `due` has entries; all moments are float64 seconds of one clock.

    A request is waited for from the moment at which it was due, also if its client was late to ask.
    """

    def __init__(self, due: NDArray[np.float64]) -> None:
        """Nothing has come yet."""
        self.due = due
        self.first = np.full(len(due), np.nan)
        self.last = np.full(len(due), np.nan)
        self._gaps: list[NDArray[np.float64]] = []

    def take(self, requests: NDArray[np.int64], now: float) -> None:
        """Note that a message has brought tokens, one or more, of each of these requests."""
        begun = ~np.isnan(self.last[requests])
        self._gaps.append(now - self.last[requests[begun]])
        self.first[requests[~begun]] = now
        self.last[requests] = now

    @property
    def first_of_all(self) -> float:
        """When the first token of all came."""
        return float(np.nanmin(self.first))

    @property
    def last_of_all(self) -> float:
        """When the last token of all came."""
        return float(np.nanmax(self.last))

    @property
    def seconds(self) -> float:
        """How long it took from the moment at which the first request was due to the last token."""
        return self.last_of_all - float(self.due.min())

    @property
    def until_first(self) -> NDArray[np.float64]:
        """Seconds from the moment at which each request was due to its first token (TTFT)."""
        return self.first - self.due

    @property
    def between(self) -> NDArray[np.float64]:
        """Seconds from each message with tokens of a request to the next one with tokens of the same (ITL)."""
        return np.concatenate([np.zeros(0), *self._gaps])
