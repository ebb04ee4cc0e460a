"""Who runs in the next step: decode first, then prompts chunk by chunk, then whoever waits.

Everything is decided before the first row is written, so a request that loses its slot has no row in the plan that
takes it away.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scheduler_proc.plan_builder import PlanBuilder
from scheduler_proc.request import NEVER, Request
from scheduler_proc.running import Running
from scheduler_proc.waiting import WaitingQueue

MOST_ASIDE = 64
"""So many requests at most are let wait in a plan for what others compute, while those behind them are looked at."""


class Planner:
    """Fills plans for the requests of one worker's session, each time in the order that their policy gave them.

    A plan has at most `max_batch_tokens` tokens, and at most `max_prefill_tokens` of these are of prompts: those who
    decode wait as long as a step takes.
    """

    def __init__(
        self,
        running: Running,
        waiting: WaitingQueue,
        max_batch_tokens: int,
        max_prefill_tokens: int,
        preempt: Callable[[Request], None],
    ) -> None:
        """Decide about `running` and `waiting`; `preempt` makes a running request wait again."""
        self._running = running
        self._waiting = waiting
        self._max_batch_tokens = max_batch_tokens
        self._max_prefill_tokens = max_prefill_tokens
        self._preempt = preempt

    def fill(self, builder: PlanBuilder, now: float) -> list[Request]:
        """Give a plan its rows; return the requests that begin with it."""
        running, slots = self._running, self._running.slots
        decode, needy, preempted = self._decode_rows()
        if len(needy):
            builder.table(needy, *running.grow(needy))
        builder.decode(decode)
        slots.planned_len[decode] += 1
        budget = min(self._max_batch_tokens - len(decode), self._max_prefill_tokens)
        budget = self._prefill_rows(builder, budget)
        return [] if preempted else self._admit(builder, budget, now)  # what was freed is for those who run

    def _decode_rows(self) -> tuple[NDArray[np.intp], NDArray[np.intp], bool]:
        """Return the slots that decode in this step, those of them that need a block, and whether others lost theirs.

        There are enough free blocks for those that need one.
        """
        running, slots, blocks = self._running, self._running.slots, self._running.blocks
        prefilled = slots.planned_len >= slots.known_len
        decode = (slots.live & prefilled & (slots.planned_len + 1 < slots.final_len)).nonzero()[0]
        needy = running.needy(decode)
        preempted = False
        while len(needy) > blocks.free:
            needy = slots.in_turn(needy)
            victim = self.victim(int(needy[0]))
            if victim is None:
                # Everyone behind the first is about to get a token or to end, which frees blocks; the last stand back.
                standing_back = needy[blocks.free :]
                return decode[~np.isin(decode, standing_back)], needy[~np.isin(needy, standing_back)], preempted
            self._preempt(running.request(victim))
            preempted = True
            decode = decode[decode != victim]
            needy = needy[needy != victim]
        return decode, needy, preempted

    def victim(self, needy: int) -> int | None:
        """Return the slot that is to be lost so that `needy`, the first in turn of those that lack a block, gets one.

        It is the last in turn of those behind `needy` that may lose theirs; None if there is none. Never one whose last
        row has been sent (it is about to end anyway), nor a resumed one that has got no token since.

        Preemption ends, whatever the policy, for two reasons. The order of requests never changes, and a victim is
        behind who displaces it: two requests can't displace each other in turn, and the first of all that run is never
        displaced. And each resumption gains a token before it may be lost again: a request that gets n tokens is
        preempted n times at most, however many others come meanwhile.
        """
        slots = self._running.slots
        all_sent = slots.planned_len + 1 >= slots.final_len
        eligible = (slots.live & ~all_sent & (slots.settled_len >= slots.victim_from)).nonzero()[0]
        if not len(eligible):
            return None
        last = int(slots.in_turn(eligible)[-1])
        return last if slots.is_behind(last, needy) else None

    def _prefill_rows(self, builder: PlanBuilder, budget: int) -> int:
        """Give running requests that are still prefilling their next chunks; return the budget that is left."""
        slots = self._running.slots
        prefilling = (slots.live & (slots.planned_len < slots.known_len)).nonzero()[0]
        if not len(prefilling):
            return budget
        for slot in slots.in_turn(prefilling).tolist():
            if budget <= 0:
                break
            budget -= self._chunk(builder, self._running.request(slot), budget)
        return budget

    def _chunk(self, builder: PlanBuilder, request: Request, budget: int) -> int:
        slots, slot = self._running.slots, request.slot
        position = int(slots.planned_len[slot])
        count = min(budget, int(slots.known_len[slot]) - position)
        builder.chunk(slot, count, request.waiting_tokens())
        if request.to_score:
            builder.score(request, position, position + count)
        slots.planned_len[slot] += count
        return count

    def _admit(self, builder: PlanBuilder, budget: int, now: float) -> list[Request]:
        """Let waiting requests in, in turn, as long as slots, blocks and budget last.

        A request gets the blocks of all its known tokens at once: once in, it reaches its next token without asking
        for more. Beside others it must leave each of them (and itself) a block to grow into. If a step in flight
        computes what would be its own first block, it stands aside until that is there; its slot and blocks are kept.
        """
        if not len(self._waiting):
            return []
        running, blocks, cache = self._running, self._running.blocks, self._running.cache
        admitted: list[Request] = []
        aside: list[Request] = []
        kept = 0  # blocks, for those who stand aside
        if budget > 0 and running.slots.free:
            cache.catch_up_with_prompts()
        while budget > 0 and len(aside) < min(running.slots.free, MOST_ASIDE):
            request = self._waiting.peek()
            if request is None:
                break
            prefix = cache.look_up(request)
            own = blocks.blocks_for(request.waiting_len) - len(prefix.blocks)
            growth = len(running) + len(aside) + 1 if len(running) else 0
            if own + kept + growth > blocks.free_beside(prefix.blocks):
                break
            if admitted and builder.table_entries + len(prefix.blocks) + own > blocks.total:
                break  # a plan changes no more entries than there are blocks; shared ones count again and again
            if not builder.has_room_for(request):
                break
            if request.strikes and any(other.strikes for other in running.requests()):
                break  # suspects of a failed step come back one at a time: if it fails again, it is known who did it
            self._waiting.pop()
            if prefix.coming:
                aside.append(request)
                kept += own
                continue
            if request.first_planned == NEVER:
                request.first_planned = now
                request.cached = min(len(prefix.blocks) * blocks.block_size, request.prompt_len)
            table = running.enter(request, prefix)
            builder.table(np.full(len(table), request.slot), np.arange(len(table)), table)
            builder.begin(request)
            budget -= self._chunk(builder, request, budget)
            if len(self._waiting):
                cache.catch_up_with(request.slot)
            admitted.append(request)
        for request in aside:
            self._waiting.push(request)
        return admitted
