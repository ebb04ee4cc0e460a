"""The tokens of running requests, laid out as the worker lays out their KV."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class TokenHistory:
    """An arena of one token per position of the KV pool, addressed through the same block tables.

        request's position p  ──►  arena[table[p // block_size], p % block_size]  =  the token whose KV is there

    So it needs no owner of its own, no growth and no copying, and what a block holds can be compared token by token.
    The newest token of a request has no KV and no place here yet: the slot's `newest` column has it.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        """Make room for blocks 0 … `blocks`: 4 bytes a position, a small part of what its KV takes."""
        self.block_size = block_size
        # Written here, not only promised: a step that is the first to touch a page would wait until it is there.
        self._arena = np.full((blocks + 1, block_size), 0, np.uint32)
        self._flat = self._arena.reshape(-1)

    def write_each(self, block: NDArray[np.int32], place: NDArray[np.int32], token: NDArray[np.uint32]) -> None:
        """Write `token[i]` at `place[i]` of `block[i]`."""
        at = block.astype(np.intp)
        at *= self.block_size
        at += place
        self._flat[at] = token

    def read_rows(
        self, tables: NDArray[np.int32], slots: NDArray[np.intp], positions: NDArray[np.int32]
    ) -> NDArray[np.uint32]:
        """Return one token per row, u4: that at `positions[i]` of the request whose table is `tables[slots[i]]`."""
        size, place = self.block_size, positions.astype(np.intp)
        block = place // size
        place += (tables[slots, block] - block) * size
        return self._flat[place]

    def write(self, table: NDArray[np.int32], tokens: NDArray[np.uint32]) -> None:
        """Write a request's first len(tokens) tokens, u4, through its table."""
        whole, rest = divmod(len(tokens), self.block_size)
        self._arena[table[:whole]] = tokens[: whole * self.block_size].reshape(whole, self.block_size)
        if rest:
            self._arena[table[whole], :rest] = tokens[whole * self.block_size :]

    def blocks(self, blocks: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
        """Return what some blocks hold, u4[n, block_size]."""
        held: NDArray[np.uint32] = self._arena[blocks]
        return held

    def read(self, table: NDArray[np.int32], start: int, stop: int) -> NDArray[np.uint32]:
        """Return the tokens at positions [start, stop) of a request, u4[stop - start]."""
        first = start // self.block_size
        last = -(-stop // self.block_size)
        run = self._arena[table[first:last]].reshape(-1)
        return run[start - first * self.block_size : stop - first * self.block_size]
