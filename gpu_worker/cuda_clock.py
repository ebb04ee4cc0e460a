"""The GPU's clock beside the host's: when, by the host's, a CUDA event was."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from timeline.recorder import nanoseconds

TRIES = 8
"""The fastest of so many comparisons counts."""

PATIENCE_NANOSECONDS = 200_000
"""How long one comparison may take: nothing here waits for a GPU that is stuck."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """An event, and the moment by the host's clock that it was at, in ns; it is off by at most `error`."""

    event: torch.cuda.Event
    moment: int
    error: int


class CUDAClock:
    """Dates timed events by their distance from the newest anchor.

    An anchor is an event on a stream of its own, where nothing is ever in its way: it happens between the moment before
    it is recorded and the moment at which it is first seen to be done, so the middle of the two is off by at most half
    of the time between them. Between anchors the two clocks drift apart. How far they did is seen at the next one, and
    counts as error.
    """

    def __init__(self, device: torch.device) -> None:
        """Make the stream; `set` before the first event is dated."""
        self._stream = torch.cuda.Stream(device)
        self._anchor: Anchor | None = None
        self._drift = 0

    def set(self) -> None:
        """Take a new anchor."""
        anchors = [anchor for anchor in (self._compare() for _ in range(TRIES)) if anchor is not None]
        if not anchors:
            return
        best = min(anchors, key=lambda anchor: anchor.error)
        if self._anchor is not None:
            self._drift = abs(self._moment(best.event, self._anchor) - best.moment)
        self._anchor = best

    @property
    def error(self) -> int:
        """By how many ns a date may be off, at most."""
        return 0 if self._anchor is None else self._anchor.error + self._drift

    def when(self, event: torch.cuda.Event) -> int:
        """Return the moment of a timed event that is done, in ns of the host's clock."""
        if self._anchor is None:
            self.set()
        assert self._anchor is not None, "the GPU answers nothing"
        return self._moment(event, self._anchor)

    def _compare(self) -> Anchor | None:
        event = torch.cuda.Event(enable_timing=True)
        before = nanoseconds()
        event.record(self._stream)
        while not event.query():
            if nanoseconds() - before > PATIENCE_NANOSECONDS:
                return None
        after = nanoseconds()
        return Anchor(event, (before + after) // 2, (after - before + 1) // 2)

    @staticmethod
    def _moment(event: torch.cuda.Event, anchor: Anchor) -> int:
        return anchor.moment + round(1e6 * float(anchor.event.elapsed_time(event)))
