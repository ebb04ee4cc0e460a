"""What running requests have computed, kept for others with the same beginning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler_proc.blocks import BlockPool
from scheduler_proc.history import TokenHistory
from scheduler_proc.prefix_index import Link, Prefix, PrefixIndex
from scheduler_proc.request import Request
from scheduler_proc.slots import SlotTable

_NO_MORE = np.iinfo(np.int32).max


class PrefixCache:
    """Names the blocks of running requests in the index, and looks there for those of waiting ones.

        a running request      0                computed_len      planned_len
        its KV                 ├─── settled ─────────┼─── in flight ───┤
        its full blocks        │ ready: others share │ named: others   │ of a decoding one: nobody knows
                               │ them                │ wait for them   │ the tokens yet

    Naming is lazy: whoever needs it done calls `catch_up`, else it is done in the shadow of the device.
    """

    def __init__(
        self, slots: SlotTable, blocks: BlockPool, history: TokenHistory, index: PrefixIndex, *, enabled: bool
    ) -> None:
        """Serve the requests in `slots`; if not `enabled`, nothing gets a name, so nothing is found."""
        self._slots = slots
        self._blocks = blocks
        self._history = history
        self._index = index
        self._enabled = enabled

    def look_up(self, request: Request) -> Prefix:
        """Return what a waiting request need not compute: whole blocks of its first `sparable_len` tokens."""
        if self._enabled:
            tokens = request.waiting_tokens().tobytes()
            width = 4 * self._blocks.block_size
            most = request.sparable_len // self._blocks.block_size
            request.prefix = self._index.extend(request.prefix, tokens, width, most, request.ask.cache_salt)
        return request.prefix

    def enter(self, slot: int, prefix: Prefix) -> None:
        """Let a request that has just got its slot begin behind `prefix`, whose blocks are in its table."""
        slots, found = self._slots, len(prefix.blocks)
        slots.planned_len[slot] = slots.computed_len[slot] = found * self._blocks.block_size
        slots.named[slot] = slots.confirmed[slot] = found
        slots.named_block[slot] = prefix.blocks[-1] if found else 0
        slots.named_serial[slot] = prefix.serials[-1] if found else 0

    def catch_up(self) -> None:
        """Name every full block that is sent to be computed, and let those be found that are."""
        if not self._enabled:
            return
        slots, size = self._slots, self._blocks.block_size
        known = np.maximum(np.minimum(slots.planned_len, slots.known_len), slots.computed_len)
        unnamed = known // size - slots.named
        unconfirmed = slots.computed_len // size - slots.confirmed
        several = slots.live & ((unnamed > 1) | (unconfirmed > 1))
        for slot in np.flatnonzero(several).tolist():
            self.catch_up_with(slot)
        # Those that decode fill a block now and then, many of them in one step.
        one = slots.live & ~several
        if len(rows := np.flatnonzero(one & (unnamed == 1))):
            self._name_next(rows)
        if len(rows := np.flatnonzero(one & (unconfirmed == 1))):
            self._index.confirm(slots.table[rows, slots.confirmed[rows]])
            slots.confirmed[rows] += 1

    def catch_up_with_prompts(self) -> None:
        """As `catch_up`, for what requests had when they got their slots alone: what others may well begin with, too.

        What they have generated since is named in the shadow of the device; nobody waits for that.
        """
        if not self._enabled:
            return
        slots, size = self._slots, self._blocks.block_size
        unnamed = slots.named < np.minimum(slots.planned_len, slots.known_len) // size
        unconfirmed = slots.confirmed < np.minimum(slots.computed_len, slots.known_len) // size
        for slot in (slots.live & (unnamed | unconfirmed)).nonzero()[0].tolist():
            self.catch_up_with(slot)

    def catch_up_with(self, slot: int) -> None:
        """As `catch_up`, for one request."""
        if not self._enabled:
            return
        slots, index, size = self._slots, self._index, self._blocks.block_size
        computed = int(slots.computed_len[slot])
        start, stop = int(slots.named[slot]), max(min(slots.planned_len[slot], slots.known_len[slot]), computed) // size
        if start < stop and self._has_chain(np.array([slot])).all():
            own = slots.table[slot, start:stop]
            tokens, width = self._history.blocks(own).tobytes(), 4 * size
            block, parent = 0, int(slots.named_serial[slot])
            for place, candidate in enumerate(own.tolist()):
                salt = "" if start + place else self._salt(slot)
                block = index.name(Link(parent, tokens[place * width : (place + 1) * width], salt), candidate)
                parent = int(index.serial[block])
            slots.named[slot], slots.named_block[slot], slots.named_serial[slot] = stop, block, parent
        index.confirm(slots.table[slot, slots.confirmed[slot] : computed // size])
        slots.confirmed[slot] = computed // size

    def _name_next(self, rows: NDArray[np.intp]) -> None:
        """Name the next block of each of some slots."""
        slots, index, width = self._slots, self._index, 4 * self._blocks.block_size
        rows = rows[self._has_chain(rows)]
        own = slots.table[rows, slots.named[rows]]
        tokens, parents = self._history.blocks(own).tobytes(), slots.named_serial[rows].tolist()
        salts = [self._salt(slot) if first else "" for slot, first in zip(rows, slots.named[rows] == 0, strict=True)]
        named = [
            index.name(Link(parent, tokens[place * width : (place + 1) * width], salt), candidate)
            for place, (parent, candidate, salt) in enumerate(zip(parents, own.tolist(), salts, strict=True))
        ]
        slots.named[rows] += 1
        slots.named_block[rows] = named
        slots.named_serial[rows] = index.serial[named]

    def _salt(self, slot: int) -> str:
        request = self._slots.request[slot]
        assert request is not None
        return request.ask.cache_salt

    def _has_chain(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which of some slots, bool[n], still have the block there that their next one is named behind.

        It may be another request's that computed the same, had named it first, and is gone. What would be named behind
        it could not be found; so of those that have lost it no more is named.
        """
        slots = self._slots
        there: NDArray[np.bool_] = self._index.serial[slots.named_block[rows]] == slots.named_serial[rows]
        slots.named[rows[~there]] = _NO_MORE
        return there

    def leave(self, slot: int) -> None:
        """Let what a request has computed be found, and take back the names of what it never will."""
        self.catch_up_with(slot)
        slots, index = self._slots, self._index
        table = slots.table[slot, : slots.table_len[slot]]
        index.forget(table[~index.ready[table]])

    def distrust(self, slot: int) -> None:
        """Forget what the request in a slot has used: something in it may not be a number."""
        slots = self._slots
        self._index.forget(slots.table[slot, : slots.table_len[slot]])
        slots.named[slot] = _NO_MORE

    def reset(self) -> int:
        """Let nothing be found of what was sent to be computed up to now; return how many blocks had a name.

        Of those who run no more is named, not even what they begin with from now on: it builds on what was forgotten.
        """
        slots = self._slots
        slots.named[slots.live] = _NO_MORE
        return self._blocks.forget_all()

    def check(self) -> None:
        """Assert what holds between any two verbs."""
        slots, index, size = self._slots, self._index, self._blocks.block_size
        index.check(self._history.blocks(np.arange(self._blocks.total + 1)))
        live = np.flatnonzero(slots.live)
        computed, planned = slots.computed_len[live] // size, slots.planned_len[live] // size
        assert (computed <= planned).all(), "more was computed than was sent"
        place = np.arange(slots.table.shape[1])
        own = (place >= computed[:, None]) & (place < slots.table_len[live][:, None])
        assert not index.ready[slots.table[live][own]].any(), "a block can be found before it is computed"
        promised = np.flatnonzero((index.serial > 0) & ~index.ready)
        if len(promised):
            awaited = (place >= np.minimum(slots.confirmed[live], computed)[:, None]) & (place < planned[:, None])
            assert np.isin(promised, slots.table[live][awaited]).all(), "a name is waited for that nobody will compute"
