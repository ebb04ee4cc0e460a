"""The owner of one worker's KV blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BlockPool:
    """Blocks 1 … `total`, handed out by `take` and returned by `give_back`. Block 0 is the worker's own.

    The free ones lie on a stack, so that what was used last is used next and memory that was never needed stays
    untouched.
    """

    def __init__(self, total: int, block_size: int) -> None:
        """Begin with all of `total` blocks of `block_size` tokens free."""
        self.total = total
        self.block_size = block_size
        self._stack = np.arange(total, 0, -1, dtype=np.int32)
        self.free = total

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> NDArray[np.int32]:
        """Return the ids of `count` blocks, int32[count], that are the caller's now; they must be free."""
        assert count <= self.free, f"{count} blocks asked for, {self.free} are free"
        self.free -= count
        return self._stack[self.free : self.free + count][::-1].copy()

    def give_back(self, blocks: NDArray[np.int32]) -> None:
        """Take back blocks that `take` gave."""
        self._stack[self.free : self.free + len(blocks)] = blocks[::-1]
        self.free += len(blocks)

    def check(self, held: NDArray[np.int32]) -> None:
        """Assert that the free blocks and `held`, all those in live tables, are each block exactly once."""
        every = np.concatenate((self._stack[: self.free], held))
        assert len(every) == self.total, f"{self.free} free and {len(held)} held blocks of {self.total}"
        assert np.array_equal(np.sort(every), np.arange(1, self.total + 1)), "a block is owned twice"
