"""Which blocks hold the KV of which tokens: found by everything that stands before them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_serials = count(1)
"""Never used twice, in any session: what is remembered of a lost worker's blocks is not taken for another's."""


class Link(NamedTuple):
    """What a block is found by. Equal links have equal tokens, and equal ones all the way up, whatever their hash."""

    parent: int  # the serial of the block before it, 0 if it is the first
    tokens: bytes  # all of its own, as u4
    salt: str = ""  # of a first block: what hangs on it is for requests of that salt alone


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first blocks of a request's tokens that need not be computed: ids int32[n], serials int64[n]."""

    blocks: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    serials: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    coming: bool = False  # a step in flight computes the block behind them


NOTHING_FOUND = Prefix()


class PrefixIndex:
    """A tree of full blocks, each named by its parent and its tokens.

        0 ─"You are a"─► 7 ─"helpful…"─► 9        a Link is an arrow; block ids stand for serials here
                         └─"strict…"───► 12

    A block gets its name when the step that is to compute it is sent, and is ready once that has settled; only then
    it is found. With a name goes a serial, so that what hangs on a forgotten parent is found no more, whatever the
    parent's block holds by now.
    """

    def __init__(self, blocks: int) -> None:
        """Begin with none of blocks 1 … `blocks` named."""
        self.serial = np.zeros(blocks + 1, np.int64)  # by block; 0 if it has no name
        self.ready = np.zeros(blocks + 1, bool)
        self._block_of: dict[Link, int] = {}
        self._link_of: dict[int, Link] = {}

    def name(self, link: Link, block: int) -> int:
        """Name a block that has no name yet; return the block of that name, which is another if it had it first."""
        first = self._block_of.setdefault(link, block)
        if first == block:
            self._link_of[block] = link
            self.serial[block] = next(_serials)
        return first

    def confirm(self, blocks: NDArray[np.int32]) -> None:
        """Note that blocks are computed: those of them that have a name can be found from now on."""
        self.ready[blocks] = self.serial[blocks] > 0

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """Take the names of blocks away, as far as they have any."""
        for block in blocks[self.serial[blocks] > 0].tolist():
            del self._block_of[self._link_of.pop(block)]
        self.serial[blocks] = 0
        self.ready[blocks] = False

    def forget_all(self) -> int:
        """Take the names of all blocks away; return how many had one."""
        forgotten = len(self._block_of)
        self._block_of.clear()
        self._link_of.clear()
        self.serial[:] = 0
        self.ready[:] = False
        return forgotten

    def extend(self, known: Prefix, tokens: bytes, width: int, most: int, salt: str) -> Prefix:
        """Return how far `tokens` (u4, `width` bytes a block) are ready for a `salt`, `most` blocks at most.

        `known` is what was found for them before; as far as it is still true it is not looked up again.
        """
        still = self.serial[known.blocks] == known.serials
        kept = len(still) if still.all() else int(still.argmin())
        parent = int(known.serials[kept - 1]) if kept else 0
        more: list[int] = []
        coming = False
        for place in range(kept, most):
            block = self._block_of.get(Link(parent, tokens[place * width : (place + 1) * width], "" if place else salt))
            if block is None:
                break
            if not self.ready[block]:
                coming = True
                break
            more.append(block)
            parent = int(self.serial[block])
        blocks = np.concatenate((known.blocks[:kept], np.array(more, np.int32)))
        return Prefix(blocks, self.serial[blocks], coming)

    def check(self, tokens: NDArray[np.uint32]) -> None:
        """Assert what holds between any two verbs; `tokens` is what each block holds, u4[blocks + 1, block_size]."""
        assert self._block_of == {link: block for block, link in self._link_of.items()}, "a block has two names"
        named = sorted(self._link_of)
        assert named == np.flatnonzero(self.serial).tolist(), "a name is lost"
        assert not self.ready[self.serial == 0].any(), "a block without a name can be found"
        said = b"".join([self._link_of[block].tokens for block in named])
        assert tokens[named].tobytes() == said, "a block holds other tokens than its name says"
