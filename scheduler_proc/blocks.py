"""The owner of one worker's KV blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler_proc.eviction import EvictionOrder
from scheduler_proc.prefix_index import PrefixIndex


class BlockPool:
    """Blocks 1 … `total`, each of them blank, cached or in use. Block 0 is the worker's own.

        blank ──take──► in use ──give_back──► blank, or cached if it can be found in the index
          ▲               ▲ └─share─┐ (by several requests)      │ │
          │               └─────────┴───────────share────────────┘ │
          └───── take, when no blank ones are left; forget_all ────┘

    The blank ones lie on a stack, so that what was used last is used next and memory that was never needed stays
    untouched. Of the cached ones those go first that were unused for longest.
    """

    def __init__(self, total: int, block_size: int, index: PrefixIndex) -> None:
        """Begin with all of `total` blocks of `block_size` tokens blank; `index` says which are worth keeping."""
        self.total = total
        self.block_size = block_size
        self.free = total  # blank and cached ones: what can be taken
        self._index = index
        self._stack = np.arange(total, 0, -1, dtype=np.int32)
        self._blank = total
        self._cached = EvictionOrder(total)
        self._uses = np.zeros(total + 1, np.int32)  # by block: how many have it

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> NDArray[np.int32]:
        """Return the ids of `count` blocks, int32[count], that are the caller's alone now; as many must be free."""
        assert count <= self.free, f"{count} blocks asked for, {self.free} are free"
        if count > self._blank:
            self._evict(count - self._blank)
        self._blank -= count
        self.free -= count
        blocks = self._stack[self._blank : self._blank + count][::-1].copy()
        self._uses[blocks] = 1
        return blocks

    def clear_ahead(self, count: int) -> None:
        """Let cached blocks give way now to the next `take` of so many, as far as there are any."""
        missing = min(count - self._blank, len(self._cached))
        if missing > 0:
            self._evict(missing)

    def forget_all(self) -> int:
        """Make cached blocks blank, and let none that is in use be found; return how many blocks had a name."""
        forgotten = self._index.forget_all()
        self._push(self._cached.take(len(self._cached)))
        return forgotten

    def share(self, blocks: NDArray[np.int32]) -> None:
        """Let the caller use blocks, too, that were found in the index; each is to be given back as if taken."""
        cached = self._unused(blocks)
        self._cached.remove(cached)
        self.free -= len(cached)
        self._uses[blocks] += 1

    def free_beside(self, blocks: NDArray[np.int32]) -> int:
        """Return how many blocks would be free once the caller shared these."""
        return self.free - len(self._unused(blocks))

    def give_back(self, blocks: NDArray[np.int32]) -> None:
        """Take back blocks, in the order of a request's table, that `take` or `share` gave.

        The later ones give way before those that they are found behind.
        """
        self._uses[blocks] -= 1
        unused = self._unused(blocks)
        self.free += len(unused)
        found = self._index.ready[unused]
        if found.any():
            self._cached.add(unused[found][::-1])
            unused = unused[~found]
        self._push(unused[::-1])

    def _unused(self, blocks: NDArray[np.int32]) -> NDArray[np.int32]:
        unused: NDArray[np.int32] = blocks[self._uses[blocks] == 0]
        return unused

    def _evict(self, count: int) -> None:
        blocks = self._cached.take(count)
        self._index.forget(blocks)
        self._push(blocks)

    def _push(self, blocks: NDArray[np.int32]) -> None:
        self._stack[self._blank : self._blank + len(blocks)] = blocks
        self._blank += len(blocks)

    def check(self, held: NDArray[np.int32]) -> None:
        """Assert that each block is blank, cached or in `held`: all those in live tables, once for each table."""
        blank, cached = self._stack[: self._blank], self._cached.blocks()
        assert len(cached) == len(self._cached), "a cached block is lost, or here twice"
        uses = np.bincount(held, minlength=self.total + 1)
        assert np.array_equal(uses, self._uses), "a block has other users than are counted"
        every = np.concatenate((blank, cached, np.flatnonzero(uses)))
        assert len(every) == self.total, f"{len(blank)} blank, {len(cached)} cached, and used blocks of {self.total}"
        assert np.array_equal(np.sort(every), np.arange(1, self.total + 1)), "a block is owned twice"
        assert self.free == len(blank) + len(cached), "free blocks are miscounted"
        assert not self._index.serial[blank].any(), "a blank block has a name"
        assert self._index.ready[cached].all(), "a block is kept that cannot be found"
