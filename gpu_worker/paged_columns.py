"""What paged kernels are told of a step: columns one behind the other in one piece of memory, padded to a shape.

    tables 3·T │ tokens T │ positions T │ slots T │ lengths T                       a decode step: all rows carry
    tables 3·T │ tokens T │ positions T │ slots T │ decode rows 3·R │ tiles 4·N     any other

Rows of one token are decode rows, the others are cut into tiles. Padding tokens are the padding slot's, whose blocks
are all block 0; padding rows have length 0, padding tiles no tokens: the kernels pass them over. What is new in block
tables is there, too, unless it is more than T entries; padding writes that the padding slot's first block is block 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 4
"""Columns begin at multiples of so many numbers: kernels are compiled for addresses that 16 bytes divide."""

CARRIED = -1
"""Instead of a token: the last one that was sampled for the slot."""

Column = NDArray[np.int32]


def aligned(size: int) -> int:
    """Return how many numbers a column of `size` takes."""
    return -(-size // ALIGNED) * ALIGNED


@dataclass(frozen=True, slots=True)
class PagedShape:
    """How long the columns of a step are, padding included."""

    tokens: int
    decode_rows: int  # of a step that has tiles
    tiles: int | None  # None: a decode step

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths of the columns in their order."""
        if self.tiles is None:
            return (self.tokens,) * 7
        return (self.tokens,) * 6 + (self.decode_rows,) * 3 + (self.tiles,) * 4

    @property
    def size(self) -> int:
        """Return how many numbers all columns take."""
        return sum(map(aligned, self.lengths))

    def views(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Return the columns in `whole`, int32 [size]."""
        found, start = [], 0
        for length in self.lengths:
            found.append(whole[start : start + length])
            start += aligned(length)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Samples:
    """What is sampled of a step, int32 [S] each."""

    slot: Tensor
    position: Tensor  # where the sampled token will stand
    at: Tensor | None = None  # of which of the step's tokens; None: of all, in order, or of those of whom it is known


@dataclass(frozen=True, slots=True)
class PagedStep:
    """A step's columns on the device."""

    shape: PagedShape
    whole: Tensor  # int32 [shape.size]

    def samples(self, rows: int) -> Samples:
        """Return what is sampled of a decode step of `rows` rows: all of them."""
        slots, lengths = self.shape.views(self.whole)[5:7]
        return Samples(slots[:rows], lengths[:rows])


def cut_tiles(count: Column, most: int) -> tuple[Column, Column, Column]:
    """Cut rows of `count` tokens (int32 [rows]) into tiles of at most `most` tokens.

    Return (row, offset within the row, tokens) of each tile.
    """
    each = -(-count // most)
    row = np.repeat(np.arange(len(count), dtype=np.int32), each)
    begins = np.cumsum(each) - each
    offset = ((np.arange(len(row)) - np.repeat(begins, each)) * most).astype(np.int32)
    return row, offset, np.minimum(count[row] - offset, most)
