"""A count of what was dropped, and a log of it that a flood can't fill."""

from __future__ import annotations

import logging


class DropLog:
    """Counts, and logs the 1st, 2nd, 4th, 8th … time."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """Begin at none; `what` was dropped is what the log says."""
        self._log = log
        self._what = what
        self.count = 0

    def add(self, why: object) -> None:
        """Count one more, dropped because of `why`."""
        self.count += 1
        if self.count.bit_count() == 1:
            self._log.warning("%s was dropped, no. %d: %.300s", self._what, self.count, why)
