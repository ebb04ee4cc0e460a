"""Sets of moments: disjoint stretches of time in order, as two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Stretches [start, end), int64 nanoseconds: each longer than nothing, and each begins after the last one's end."""

    start: Times
    end: Times

    def __len__(self) -> int:
        """How many."""
        return len(self.start)

    @property
    def total(self) -> int:
        """Return how long they are together."""
        return int((self.end - self.start).sum())

    def within(self, start: Times, end: Times) -> Times:
        """Return how much of each stretch [start, end) is covered; these may overlap one another."""
        return self._until(end) - self._until(start)

    def overlap(self, other: Intervals) -> int:
        """Return how long both are there."""
        return int(self.within(other.start, other.end).sum())

    def gaps(self) -> Intervals:
        """Return what lies between them."""
        return Intervals(self.end[:-1], self.start[1:])

    def common(self, other: Intervals) -> Intervals:
        """Return the moments that are in both."""
        return self._where(other, True)

    def without(self, other: Intervals) -> Intervals:
        """Return the moments that are not in the other."""
        return self._where(other, False)

    def _where(self, other: Intervals, there: bool) -> Intervals:
        """Return the moments at which the other is there, or is not."""
        edges = np.unique(np.concatenate((self.start, self.end, other.start, other.end)))
        start, end = edges[:-1], edges[1:]
        wanted = (self.within(start, end) > 0) & ((other.within(start, end) > 0) == there)
        return union(start[wanted], end[wanted])

    def _until(self, time: Times) -> Times:
        """Return how much is covered before each time."""
        if not len(self):
            return np.zeros(len(time), np.int64)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))  # before each stretch
        last = np.searchsorted(self.start, time, "right")  # stretches that have begun
        cut = np.maximum(self.end[last - 1] - time, 0) * (last > 0)
        until: Times = before[last] - cut
        return until


def union(start: Times, end: Times) -> Intervals:
    """Return the moments of all stretches [start, end); those that touch become one."""
    longer_than_nothing = end > start
    start, end = start[longer_than_nothing], end[longer_than_nothing]
    if not len(start):
        return Intervals(start, end)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    begins = np.concatenate(([True], start[1:] > end[:-1]))
    ends = np.concatenate((begins[1:], [True]))
    return Intervals(start[begins], end[ends])


def joined(sets: Sequence[Intervals]) -> Intervals:
    """Return the moments that are in any of the sets."""
    nothing = np.zeros(0, np.int64)
    return union(
        np.concatenate([nothing, *(each.start for each in sets)]),
        np.concatenate([nothing, *(each.end for each in sets)]),
    )
