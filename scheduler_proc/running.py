"""The requests that run on one worker: their slots, blocks and tokens, taken together and given back together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Opened
from scheduler_proc.blocks import BlockPool
from scheduler_proc.history import TokenHistory
from scheduler_proc.prefix_cache import PrefixCache
from scheduler_proc.prefix_index import Prefix, PrefixIndex
from scheduler_proc.request import Request
from scheduler_proc.slots import SlotTable

NO_TOKENS = np.zeros(0, np.uint32)


class Running:
    """All that a request owns from `enter` to `leave`; one object for each session with a worker."""

    def __init__(self, worker: Opened, *, prefix_caching: bool) -> None:
        """Begin with everything free; with `prefix_caching`, blocks given back may still be found."""
        index = PrefixIndex(worker.blocks)
        self.blocks = BlockPool(worker.blocks, worker.block_size, index)
        self.slots = SlotTable(worker.slots, self.blocks.blocks_for(worker.max_model_len))
        self.history = TokenHistory(worker.blocks, worker.block_size)
        self.cache = PrefixCache(self.slots, self.blocks, self.history, index, enabled=prefix_caching)
        self._end_tokens = worker.eos_token_ids

    def __len__(self) -> int:
        """How many requests run."""
        return self.slots.total - self.slots.free

    def request(self, slot: int) -> Request:
        """Return the request in a live slot."""
        request = self.slots.request[slot]
        assert request is not None
        return request

    def requests(self) -> list[Request]:
        """Return all that run."""
        return [self.request(slot) for slot in np.flatnonzero(self.slots.live).tolist()]

    def enter(self, request: Request, prefix: Prefix) -> NDArray[np.int32]:
        """Give a waiting request a slot, and blocks for all tokens that it has: those of `prefix`, and own ones.

        Returns all of them. What is in the first is computed already.
        """
        slots, found = self.slots, len(prefix.blocks)
        slot = slots.take(request, self._end_tokens)
        self.blocks.share(prefix.blocks)  # before others are taken, which might be these
        own = self.blocks.take(self.blocks.blocks_for(request.waiting_len) - found)
        blocks = np.concatenate((prefix.blocks, own))
        slots.table[slot, : len(blocks)] = blocks
        slots.table_len[slot] = len(blocks)
        slots.newest_block[slot] = blocks[max(0, request.waiting_len - 2) // self.blocks.block_size]
        self.history.write(own, request.waiting_tokens()[found * self.blocks.block_size :])
        self.cache.enter(slot, prefix)
        return blocks

    def leave(self, request: Request) -> None:
        """Take a request's slot and blocks back at once; it keeps its tokens and its cursor itself from now on.

        Rows still in flight write into these blocks, but before anything that is planned from now on: the device
        works in order.
        """
        slots, slot = self.slots, request.slot
        request.output = self.tokens(slot, request.prompt_len, int(slots.settled_len[slot]))
        request.sent = int(slots.sent_len[slot]) - request.prompt_len
        request.last_token = float(slots.newest_at[slot])
        self.cache.leave(slot)
        self.blocks.give_back(slots.table[slot, : slots.table_len[slot]])
        slots.give_back(slot)

    def needy(self, among: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of some slots whose next input has no block yet."""
        slots = self.slots
        return among[slots.planned_len[among] >= slots.table_len[among] * self.blocks.block_size]

    def grow(self, needy: NDArray[np.intp]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Give each of some slots one more block; return (index in its table, block) for each."""
        slots = self.slots
        blocks = self.blocks.take(len(needy))
        index = slots.table_len[needy]
        slots.table[needy, index] = blocks
        slots.table_len[needy] += 1
        return index, blocks

    def catch_up(self) -> None:
        """Do now what would else be done while the device waits: name blocks, and clear those needed next."""
        slots = self.slots
        self.cache.catch_up()
        growing = (slots.live & (slots.planned_len + 1 < slots.final_len)).nonzero()[0]
        self.blocks.clear_ahead(len(self.needy(growing)))

    def append(self, rows: NDArray[np.intp], token: NDArray[np.uint32], now: float) -> NDArray[np.int32]:
        """Add a settled token to each of some slots; return the lengths that they had before."""
        slots, size = self.slots, self.blocks.block_size
        length = slots.settled_len[rows]
        index = (length - 1) // size
        place = length - 1 - index * size
        # Of each row's table a line of memory would have to come; most rows go on in the block they were in.
        if len(begun := (place == 0).nonzero()[0]):
            slots.newest_block[rows[begun]] = slots.table[rows[begun], index[begun]]
        self.history.write_each(slots.newest_block[rows], place, slots.newest[rows])
        slots.newest[rows] = token
        slots.newest_at[rows] = now
        slots.settled_len[rows] = length + 1
        return length

    def tokens(self, slot: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Return a request's tokens at [start, stop), u4; stop is at most settled_len."""
        slots = self.slots
        if stop <= start:
            return NO_TOKENS
        if stop < slots.settled_len[slot]:
            return self.history.read(slots.table[slot], start, stop)
        before = self.history.read(slots.table[slot], start, stop - 1) if start < stop - 1 else NO_TOKENS
        return np.append(before, slots.newest[slot])

    def gather(self, rows: NDArray[np.intp], start: NDArray[np.int32], stop: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Return the tokens from `start` to the newest of each of some slots, u4, row after row; `stop` is settled_len.

        No loop over rows: a client that lagged for one turn lags with all of its requests.
        """
        count = stop - start
        ends = np.cumsum(count)
        position = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - stop, count).astype(np.int32)
        newest = ends - 1
        position[newest] -= 1  # the newest token has no place yet; whatever is read here is overwritten below
        np.maximum(position, 0, out=position)
        token = self.history.read_rows(self.slots.table, np.repeat(rows, count), position)
        token[newest] = self.slots.newest[rows]
        return token

    def check(self) -> None:
        """Assert what holds between any two verbs."""
        slots = self.slots
        slots.check()
        live = np.flatnonzero(slots.live)
        held = [slots.table[slot, : slots.table_len[slot]] for slot in live]
        self.blocks.check(np.concatenate(held) if held else np.zeros(0, np.int32))
        self.cache.check()
        newest = np.maximum(slots.settled_len[live] - 2, 0) // self.blocks.block_size
        assert (slots.newest_block[live] == slots.table[live, newest]).all(), "a token would go into another's block"
        room = slots.table_len[live] * self.blocks.block_size
        assert (slots.planned_len[live] <= room).all(), "a row was sent without a block for it"
        for request in self.requests():
            known = request.waiting_tokens()
            assert np.array_equal(self.tokens(request.slot, 0, len(known)), known), "tokens were overwritten"
