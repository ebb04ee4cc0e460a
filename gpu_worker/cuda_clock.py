"""The GPU's clock beside the host's: when, by the host's, a CUDA event was."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from timeline.recorder import nanoseconds

TRIES = 8
"""The fastest of so many comparisons counts."""

PATIENCE_NANOSECONDS = 200_000
"""How long one comparison may take: nothing here waits for a GPU that is stuck."""


FORGOTTEN_NANOSECONDS = 5_000_000_000
"""Anchors are taken each second while anything is dated. By one that is older nothing was, so its drift is no error."""


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
        """Make the stream; nothing is dated before the first `set`."""
        self._stream = torch.cuda.Stream(device)
        self._anchor: Anchor | None = None
        self._drift = 0

    def set(self) -> None:
        """Take a new anchor; where the GPU answers too slowly, the last one stays."""
        anchors = [anchor for anchor in (self._compare() for _ in range(TRIES)) if anchor is not None]
        if not anchors:
            return
        best = min(anchors, key=lambda anchor: anchor.error)
        last = self._anchor
        if last is None or best.moment - last.moment > FORGOTTEN_NANOSECONDS:
            self._drift = 0
        else:
            self._drift = abs(self._moment(best.event, last) - best.moment)
        self._anchor = best

    @property
    def error(self) -> int:
        """By how many ns a date may be off, at most."""
        return 0 if self._anchor is None else self._anchor.error + self._drift

    def when(self, event: torch.cuda.Event) -> int | None:
        """Return the moment of a timed event that is done, in ns of the host's clock; None if there is no anchor."""
        return None if self._anchor is None else self._moment(event, self._anchor)

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
