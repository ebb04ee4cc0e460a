"""What all frontends behind one address have counted together, whichever of them is asked."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from math import inf

import numpy as np
from numpy.typing import NDArray

from frontend.tally import Tally
from protocol.errors import ProtocolError

COUNTERS = ("refused", "turned_away", "resubmitted", "overshoot_tokens")
"""Those of the core's counters that are told."""

WRITE_SECONDS = 0.25
"""How old what the others see of this frontend may be."""


class Counts:
    """A file in memory with a row of numbers for each frontend; each writes its own and reads all.

    What a frontend hangs with stays there, and it writes what it tells before it tells it: no sum ever falls. A number
    is eight bytes, written at once; those of a row may be some microseconds apart.
    """

    def __init__(self, path: str, place: int, places: int) -> None:
        """Have row `place` of `places`, in a file that the first of them makes; raises `ProtocolError`."""
        width = len(_row(Tally(), Counter()))
        size = places * width * np.dtype(np.float64).itemsize
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, size)
                memory = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ProtocolError(f"{path}: {error.strerror or error}") from None
        self._rows: NDArray[np.float64] = np.frombuffer(memory, np.float64).reshape(places, width)
        self._place = place
        self._next = -inf

    def keep_up(self, tally: Tally, counters: Counter[str], now: float) -> None:
        """Let the others see what this frontend has counted, every so often."""
        if now >= self._next:
            self._next = now + WRITE_SECONDS
            self._write(tally, counters)

    def told(self, tally: Tally, counters: Counter[str]) -> tuple[Tally, Counter[str]]:
        """Return what all have counted; this frontend exactly what is given here."""
        self._write(tally, counters)
        sums = self._rows.sum(axis=0).tolist()
        whole = Tally()
        whole.take(iter(sums[len(COUNTERS) :]))
        return whole, Counter(dict(zip(COUNTERS, map(int, sums), strict=False)))

    def _write(self, tally: Tally, counters: Counter[str]) -> None:
        self._rows[self._place] = _row(tally, counters)


def _row(tally: Tally, counters: Counter[str]) -> list[float]:
    return [*(float(counters[name]) for name in COUNTERS), *tally.numbers]
