"""In which order cached blocks give way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LOOK_AT = 1024
"""Entries looked at together: most may be void."""


class EvictionOrder:
    """Cached blocks that nobody uses, the longest unused first.

    A line of (block, stamp). A block that is used again stays in the line and gets another stamp: its old entry is
    void, and dropped when it is met, or when the line is full. So nothing is searched and nothing moved one by one.
    """

    def __init__(self, total: int) -> None:
        """Begin empty, with room for blocks 1 … `total`."""
        self._block = np.zeros(2 * total, np.int32)
        self._stamp = np.zeros(2 * total, np.int64)
        self._first = self._end = 0
        self._valid = np.zeros(total + 1, np.int64)  # by block: the stamp of its valid entry, 0 if it has none
        self._last_stamp = 0
        self._count = 0

    def __len__(self) -> int:
        """How many blocks are here."""
        return self._count

    def add(self, blocks: NDArray[np.int32]) -> None:
        """Put blocks that are not here at the end; the first of them gives way first."""
        if self._end + len(blocks) > len(self._block):
            self._drop_void()
        self._last_stamp += 1
        start, self._end = self._end, self._end + len(blocks)
        self._block[start : self._end] = blocks
        self._stamp[start : self._end] = self._last_stamp
        self._valid[blocks] = self._last_stamp
        self._count += len(blocks)

    def remove(self, blocks: NDArray[np.int32]) -> None:
        """Take blocks out that are here."""
        self._valid[blocks] = 0
        self._count -= len(blocks)

    def take(self, count: int) -> NDArray[np.int32]:
        """Take out and return the `count` blocks that are longest unused, int32[count]; there must be as many."""
        assert count <= self._count
        taken = [self._block[:0]]
        left = count
        while left:
            look_at = slice(self._first, min(self._end, self._first + left + _LOOK_AT))
            valid = np.flatnonzero(self._valid[self._block[look_at]] == self._stamp[look_at])[:left]
            taken.append(self._block[look_at][valid])
            left -= len(valid)
            self._first = look_at.stop if left else self._first + int(valid[-1]) + 1
        blocks = np.concatenate(taken)
        self.remove(blocks)
        return blocks

    def _drop_void(self) -> None:
        line = slice(self._first, self._end)
        valid = self._valid[self._block[line]] == self._stamp[line]
        blocks, stamps = self._block[line][valid], self._stamp[line][valid]
        self._first, self._end = 0, len(blocks)
        self._block[: self._end] = blocks
        self._stamp[: self._end] = stamps

    def blocks(self) -> NDArray[np.int32]:
        """Return the blocks that are here, int32, in their order."""
        line = slice(self._first, self._end)
        blocks: NDArray[np.int32] = self._block[line][self._valid[self._block[line]] == self._stamp[line]]
        return blocks

    def check(self) -> None:
        """Assert what holds between any two verbs."""
        blocks = self.blocks()
        assert len(blocks) == self._count == np.count_nonzero(self._valid), "a cached block is lost, or here twice"
