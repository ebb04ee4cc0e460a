"""The owner of one worker's slots, and the columns that hold what running requests are at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler_proc.request import Request

NO_TOKEN = np.uint32(2**32 - 1)
"""Fills the unused places of `stop_ids`; no vocabulary is that large."""

_NEAR = np.uint32(2**12 - 1)
"""Most tokens end nobody, and these bits of them say so: only the others are compared with what ends their slots."""

NARROW = 8
"""Requests with more stop tokens than this are looked at one by one, so that the others need not pay for them."""


class SlotTable:
    """Slots 0 … `total`-1, handed out by `take` and returned by `give_back`; one column entry for each.

    Slots travel as intp, which is what NumPy indexes by: it would turn any other kind into that at each look-up.

                  0            prompt_len      known_len    settled_len      final_len
        tokens    ├── prompt ──┼─ output before ─┼─ output since ─┤ ······ not yet ······┤
        KV        ├────────── planned_len ───────────────────────────►
                  ├─── computed_len ────────────────►

    planned_len counts the positions whose input has been sent, computed_len those for which the step has settled, and
    settled_len the tokens that are known. Until
    planned_len has reached known_len (what was known on admission) the request is prefilling; from then on each row
    is a decode, and planned_len + 1 tokens are promised. With k plans unanswered, settled_len lags by up to k.
    """

    def __init__(self, total: int, max_blocks: int) -> None:
        """Begin with `total` free slots whose block tables have room for `max_blocks` blocks."""
        self.total = total
        self._stack = list(range(total - 1, -1, -1))
        self.live = np.zeros(total, bool)
        self.epoch = np.zeros(total, np.int64)  # goes up when a slot is given back: rows sent before mean nothing then
        self.rank = np.zeros(total, np.float64)
        self.order = np.zeros(total, np.int64)  # among equal ranks
        self.client = np.zeros(total, np.int64)
        self.request_id = np.zeros(total, np.uint64)
        self.prompt_len = np.zeros(total, np.int32)
        self.known_len = np.zeros(total, np.int32)
        self.planned_len = np.zeros(total, np.int32)
        self.computed_len = np.zeros(total, np.int32)
        self.settled_len = np.zeros(total, np.int32)
        self.final_len = np.zeros(total, np.int32)
        self.sent_len = np.zeros(total, np.int32)  # tokens that the client has been given, its prompt counted in
        self.newest = np.zeros(total, np.uint32)  # the token at settled_len - 1
        self.newest_at = np.zeros(total, np.float64)  # when it settled
        self.victim_from = np.zeros(total, np.int32)  # no preemption before settled_len has reached this
        self.listed = np.zeros(total, bool)  # whether log probabilities are wanted
        self.table = np.zeros((total, max_blocks), np.int32)
        self.table_len = np.zeros(total, np.int32)
        self.newest_block = np.zeros(total, np.int32)  # the table's block of position settled_len - 2: no need to look
        self.named = np.zeros(total, np.int32)  # so many blocks of the table have been named in the prefix index
        self.named_block = np.zeros(total, np.int32)  # the last of them there, which may be another's, and its serial
        self.named_serial = np.zeros(total, np.int64)
        self.confirmed = np.zeros(total, np.int32)  # so many blocks of the table can be found there, if they have names
        self.cached = np.zeros(total, np.int32)  # tokens of the prompt that were not computed, at first
        self.stop_ids = np.full((total, NARROW), NO_TOKEN, np.uint32)
        self.many_stop_ids: dict[int, frozenset[int]] = {}
        self._stops = [np.zeros(0, np.uint32)] * total
        self._ends_near = np.zeros(int(_NEAR) + 1, np.int32)  # by a token's last bits: how many such tokens end a slot
        self.request: list[Request | None] = [None] * total

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._stack)

    def take(self, request: Request, end_tokens: NDArray[np.uint32]) -> int:
        """Give a waiting request a slot with an empty block table; one must be free.

        `end_tokens` are the model's, which count unless the request ignores them.
        """
        slot = self._stack.pop()
        length = request.waiting_len
        self.live[slot] = True
        self.rank[slot] = request.rank
        self.order[slot] = request.order
        self.client[slot] = request.client
        self.request_id[slot] = request.ask.request
        self.prompt_len[slot] = request.prompt_len
        self.known_len[slot] = length
        self.settled_len[slot] = length
        self.final_len[slot] = request.final_len
        self.sent_len[slot] = request.prompt_len + request.sent
        self.newest[slot] = request.output[-1] if len(request.output) else request.ask.prompt[-1]
        self.newest_at[slot] = request.last_token
        self.victim_from[slot] = length + 1 if request.resumed else 0
        self.listed[slot] = request.ask.logprobs is not None
        self.table_len[slot] = 0
        self.cached[slot] = request.cached
        self._set_stop_ids(slot, request.ends_at(end_tokens))
        self.request[slot] = request
        request.slot = slot
        return slot

    def give_back(self, slot: int) -> None:
        """Take a slot back and end its epoch."""
        request = self.request[slot]
        assert request is not None
        request.slot = -1
        self.request[slot] = None
        self.many_stop_ids.pop(slot, None)
        np.subtract.at(self._ends_near, self._stops[slot] & _NEAR, 1)
        self.live[slot] = False
        self.epoch[slot] += 1
        self._stack.append(slot)

    def in_turn(self, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return some slots, intp[n], the one whose turn is first before the others."""
        return slots[np.lexsort((self.order[slots], self.rank[slots]))]

    def is_behind(self, slot: int, other: int) -> bool:
        """Whether one slot's turn is after the other's."""
        rank, order = self.rank, self.order
        return bool((rank[slot], order[slot]) > (rank[other], order[other]))

    def stopped(self, rows: NDArray[np.intp], token: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Return those of some slots, each with its newest token, that have come to one that ends them."""
        suspects = self._ends_near[(token & _NEAR).astype(np.intp)].nonzero()[0]
        if not len(suspects):
            return suspects
        rows, token = rows[suspects], token[suspects]
        stopped = (token[:, None] == self.stop_ids[rows]).any(1)
        for slot, stops in self.many_stop_ids.items():
            for row in np.flatnonzero(rows == slot).tolist():
                stopped[row] = int(token[row]) in stops
        ended: NDArray[np.intp] = rows[stopped]
        return ended

    def _set_stop_ids(self, slot: int, stops: NDArray[np.uint32]) -> None:
        self._stops[slot] = stops
        np.add.at(self._ends_near, stops & _NEAR, 1)
        self.stop_ids[slot] = NO_TOKEN
        if len(stops) <= NARROW:
            self.stop_ids[slot, : len(stops)] = stops
        else:
            self.many_stop_ids[slot] = frozenset(stops.tolist())

    def check(self) -> None:
        """Assert what holds of slots between any two verbs."""
        live = np.flatnonzero(self.live)
        assert len(self._stack) + len(live) == self.total, "a slot is lost"
        assert len({*self._stack, *live.tolist()}) == self.total, "a slot is owned twice"
        for slot in range(self.total):
            request = self.request[slot]
            assert (request is not None) == bool(self.live[slot]), f"slot {slot}: live and its request disagree"
            assert request is None or request.slot == slot, f"slot {slot}: its request is elsewhere"
        assert (self.known_len[live] <= self.settled_len[live]).all(), "known tokens got lost"
        assert (self.settled_len[live] <= self.final_len[live]).all(), "longer than allowed"
        assert (self.planned_len[live] < self.final_len[live]).all(), "more was planned than can be used"
        assert (self.sent_len[live] <= self.settled_len[live]).all(), "more was sent than is known"
        ends = np.concatenate([self._stops[slot] for slot in live] or [np.zeros(0, np.uint32)]) & _NEAR
        assert np.array_equal(np.bincount(ends, minlength=len(self._ends_near)), self._ends_near), (
            "end tokens miscounted"
        )
        promised = np.maximum(self.planned_len[live] + 1, self.known_len[live])
        assert (self.settled_len[live] <= promised).all(), "a token settled that no plan had asked for"
