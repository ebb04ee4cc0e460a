"""The scheduler of one worker: events in, plans and deltas out. No sockets, no clock, no torch.

    submit, abort, expire ──►  Scheduler  ──► plan(now)        the next step, as long as there is credit
    settle(answer, now)   ──►             ──► take_deltas()    what the clients have not been told

Lengths move when a plan is sent, tokens when its answer comes. Between the two, a request may end, be aborted or lose
its slot: that ends the slot's epoch, and whatever rows are still in flight mean nothing when they come back. No other
special case exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Deltas, Failed, Finish, Opened, Plan, Result, RowStatus, Submit
from scheduler_proc.blocks import BlockPool
from scheduler_proc.history import TokenHistory
from scheduler_proc.in_flight import InFlight, SentPlan
from scheduler_proc.outbox import Outbox, deltas_of, waiting_piece
from scheduler_proc.plan_builder import PlanBuilder
from scheduler_proc.request import NEVER, Key, Request
from scheduler_proc.slots import SlotTable
from scheduler_proc.waiting import WaitingQueue

MAX_STRIKES = 3
"""A request that was on board of so many failed steps in a row is what makes them fail: it ends with an error."""

MAX_DEATHS = 2
"""A request that was on board when so many workers died gets an error, before it takes the next one along."""

_NO_TOKENS = np.zeros(0, np.uint32)


class CapacityError(Exception):
    """The worker can't hold one request of the length that it allows; the text has the numbers."""


@dataclass(slots=True)
class Counters:
    """What has happened since the start. All of them only go up."""

    steps: int = 0
    rows: int = 0
    wasted_rows: int = 0  # computed for a request that had ended or lost its slot meanwhile
    failed_steps: int = 0
    dropped_answers: int = 0  # of another session, or not the step whose turn it was
    preemptions: int = 0
    settled_tokens: int = 0


class Scheduler:
    """Decides for one worker who runs, in which blocks, and what comes next.

    Time is in seconds on any clock that never goes back. Requests of one client are told apart by the client's own
    counter; `client` is any int that the caller gives to a client.
    """

    def __init__(self, worker: Opened, credit: int, session: int) -> None:
        """Schedule for the worker that `Opened` a session, with at most `credit` plans unanswered.

        `session` is the scheduler's own, which Deltas carry. Raises `CapacityError`.
        """
        self.counters = Counters()
        self._session = session
        self._credit = credit
        self._waiting = WaitingQueue()
        self._outbox = Outbox()
        self._requests: dict[Key, Request] = {}
        self._behind: dict[Key, Request] = {}  # preempted before their client was given all of their tokens
        self._deadlines: list[tuple[float, int, Request]] = []
        self._arrivals = 0
        self.outstanding_tokens = 0
        """Tokens that may still have to be computed for the requests accepted: what balancing goes by."""
        self._begin_session(worker)

    def _begin_session(self, worker: Opened) -> None:
        check_capacity(worker)
        self.worker = worker
        self._blocks = BlockPool(worker.blocks, worker.block_size)
        self._slots = SlotTable(worker.slots, self._blocks.blocks_for(worker.max_model_len))
        self._history = TokenHistory(worker.blocks, worker.block_size)
        self._in_flight = InFlight(self._credit)

    # ------------------------------------------------------------------ events

    def submit(self, client: int, ask: Submit, now: float) -> None:
        """Accept a request, or note for its client why it is refused. A live request's id is not taken again."""
        key = (client, ask.request)
        if key in self._requests:
            return  # a duplicate: the first one goes on, and its deltas answer both
        if problem := self._problem(ask):
            self._outbox.refused(client, ask.request, problem)
            return
        final_len = min(len(ask.prompt) + ask.max_tokens, self.worker.max_model_len)
        self._arrivals += 1
        request = Request(
            client, ask, self._arrivals, final_len, now, now + ask.timeout if ask.timeout else inf,
            output=ask.output, sent=len(ask.output), resumed=len(ask.output) > 0,
        )  # fmt: skip
        self._accept(request, now)

    def lose_worker(self, now: float) -> None:
        """Note that the worker is gone, with all its KV: those who ran wait for another session, from their tokens."""
        for slot in np.flatnonzero(self._slots.live).tolist():
            request = self._running(slot)
            request.deaths += 1
            if request.deaths >= MAX_DEATHS:
                self._end(request, Finish.ERROR, now, f"{request.deaths} workers died while they computed it")
            else:
                self._leave_slot(request)
        self._in_flight = InFlight(0)

    def reopen(self, worker: Opened, now: float) -> None:
        """Begin a new session, with the same worker or another, after `lose_worker`. Raises `CapacityError`."""
        self._begin_session(worker)
        self.adopt(self.abandon(), now)

    def abandon(self) -> list[Request]:
        """Give up every request (none runs: the worker is lost), with its tokens so far, for a scheduler to `adopt`."""
        requests = self._waiting.requests()
        self._waiting = WaitingQueue()
        self._requests.clear()
        self._behind.clear()
        self.outstanding_tokens = 0
        return requests

    def adopt(self, requests: list[Request], now: float) -> None:
        """Take over requests that a scheduler of the same model gave up by `abandon`, oldest first."""
        for request in sorted(requests, key=lambda request: (request.arrived, request.order)):
            self._arrivals += 1
            request.order = self._arrivals
            request.final_len = min(request.final_len, self.worker.max_model_len)
            if len(request.unsent):
                self._behind[request.key] = request
            self._accept(request, now)

    def _accept(self, request: Request, now: float) -> None:
        self._requests[request.key] = request
        self.outstanding_tokens += max(0, request.final_len - request.waiting_len)
        self._waiting.push(request)
        if request.deadline < inf:
            heapq.heappush(self._deadlines, (request.deadline, request.order, request))
        if request.waiting_len >= request.final_len:
            self._end(request, Finish.LENGTH, now)
        elif len(request.output) and request.output[-1] in self._end_tokens(request.ask):
            self._end(request, Finish.STOP, now)

    def abort(self, client: int, request: int, now: float, why: Finish = Finish.ABORT) -> bool:
        """End a request, whatever its state; False if there is none of that id (any more)."""
        found = self._requests.get((client, request))
        if found is None:
            return False
        self._end(found, why, now)
        return True

    def knows(self, client: int, request: int) -> bool:
        """Whether a request of that id is waiting or running."""
        return (client, request) in self._requests

    def drop_client(self, client: int, now: float) -> None:
        """Abort all requests of a client that is gone, and forget what it was to be told."""
        for request in [request for request in self._requests.values() if request.client == client]:
            self._end(request, Finish.ABORT, now)
        self._outbox.forget(client)

    def end_all(self, why: Finish, now: float, error: str = "") -> None:
        """End every request."""
        for request in list(self._requests.values()):
            self._end(request, why, now, error)

    def expire(self, now: float) -> None:
        """End the requests whose deadline has come, waiting or running."""
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.finish is Finish.RUNNING and self._requests.get(request.key) is request:
                self._end(request, Finish.TIMEOUT, now)

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do next; inf if never."""
        return self._deadlines[0][0] if self._deadlines else inf

    # ------------------------------------------------------------------ plan

    def plan(self, now: float) -> Plan | None:
        """Return the next step to send, or None: no credit, or nothing to run.

        Running requests that decode come first, one token each; what is left of the token budget goes to prompts, in
        order of arrival, chunk by chunk.
        """
        if not self._in_flight.may_send:
            return None
        builder = PlanBuilder(self._slots)
        decode, preempted = self._decode_rows()
        self._grow_tables(builder, decode)
        builder.decode(decode)
        budget = self.worker.max_batch_tokens - len(decode)
        self._slots.planned_len[decode] += 1
        budget = self._prefill_rows(builder, budget)
        if not preempted:  # what was freed is for those who run
            self._admit(builder, budget, now)
        if builder.empty:
            return None
        plan, sent = builder.build(self.worker.session, self._in_flight)
        self._in_flight.take(sent)
        self.counters.steps += 1
        self.counters.rows += len(sent.slots)
        return plan

    def _decode_rows(self) -> tuple[NDArray[np.int32], bool]:
        """Return the slots that decode in this step, int32, and whether others were preempted for their blocks."""
        slots = self._slots
        prefilled = slots.planned_len >= slots.known_len
        decode = np.flatnonzero(slots.live & prefilled & (slots.planned_len + 1 < slots.final_len)).astype(np.int32)
        needy = self._needy(decode)
        if len(needy) <= self._blocks.free:
            return decode, False
        preempted = False
        while len(needy) > self._blocks.free:
            victim = self._victim(younger_than=int(slots.order[needy].min()))
            if victim is None:
                # Everyone younger is about to get a token or to end, which frees blocks; the youngest stand back.
                standing_back = needy[np.argsort(slots.order[needy])][self._blocks.free :]
                return decode[~np.isin(decode, standing_back)], preempted
            self._preempt(victim)
            preempted = True
            decode = decode[decode != victim]
            needy = needy[needy != victim]
        return decode, preempted

    def _needy(self, decode: NDArray[np.int32]) -> NDArray[np.int32]:
        slots = self._slots
        room = slots.table_len[decode] * self._blocks.block_size
        return decode[slots.planned_len[decode] >= room]

    def _victim(self, younger_than: int) -> int | None:
        """Return the youngest running request that may lose its slot, or None.

        Never one whose last row has been sent (it is about to end anyway), nor a resumed one that has got no token
        since: each resumption gains at least one, so preemption can't go round in circles.
        """
        slots = self._slots
        all_sent = slots.planned_len + 1 >= slots.final_len
        eligible = slots.live & ~all_sent & (slots.settled_len >= slots.victim_from) & (slots.order > younger_than)
        candidates = np.flatnonzero(eligible)
        return int(candidates[np.argmax(slots.order[candidates])]) if len(candidates) else None

    def _grow_tables(self, builder: PlanBuilder, decode: NDArray[np.int32]) -> None:
        slots = self._slots
        needy = self._needy(decode)
        if len(needy):
            blocks = self._blocks.take(len(needy))
            index = slots.table_len[needy]
            slots.table[needy, index] = blocks
            slots.table_len[needy] += 1
            builder.table(needy, index, blocks)

    def _prefill_rows(self, builder: PlanBuilder, budget: int) -> int:
        """Give running requests that are still prefilling their next chunks; return the budget that is left."""
        slots = self._slots
        prefilling = np.flatnonzero(slots.live & (slots.planned_len < slots.known_len))
        for slot in prefilling[np.argsort(slots.order[prefilling])].tolist():
            if budget <= 0:
                break
            request = slots.request[slot]
            assert request is not None
            budget -= self._chunk(builder, request, budget)
        return budget

    def _chunk(self, builder: PlanBuilder, request: Request, budget: int) -> int:
        slots = self._slots
        slot = request.slot
        count = min(budget, int(slots.known_len[slot] - slots.planned_len[slot]))
        builder.chunk(slot, count, request.waiting_tokens())
        slots.planned_len[slot] += count
        return count

    def _admit(self, builder: PlanBuilder, budget: int, now: float) -> None:
        """Let waiting requests in, in turn, as long as slots, blocks and budget last.

        A request gets the blocks of all its known tokens at once: once in, it reaches its next token without asking
        for more. Beside others it must leave each of them (and itself) a block to grow into.
        """
        slots = self._slots
        while budget > 0 and slots.free and (request := self._waiting.peek()) is not None:
            need = self._blocks.blocks_for(request.waiting_len)
            running = slots.total - slots.free
            if need + (running + 1 if running else 0) > self._blocks.free:
                break
            if request.strikes and self._suspect_is_running():
                break
            self._waiting.pop()
            if request.first_planned == NEVER:
                request.first_planned = now
            slot = slots.take(request, self.worker.eos_token_ids)
            self._behind.pop(request.key, None)  # its slot's cursor takes over
            blocks = self._blocks.take(need)
            slots.table[slot, :need] = blocks
            slots.table_len[slot] = need
            builder.table(np.full(need, slot, np.int32), np.arange(need, dtype=np.int32), blocks)
            builder.begin(request)
            self._history.write(blocks, request.waiting_tokens())
            budget -= self._chunk(builder, request, budget)

    def _suspect_is_running(self) -> bool:
        # Suspects of a failed step come back one at a time: if it fails again, it is known who did it.
        return any(request is not None and request.strikes for request in self._slots.request)

    # ------------------------------------------------------------------ settle

    def settle(self, answer: Result | Failed, now: float) -> bool:
        """Take a worker's answer to the oldest plan in flight.

        False if it is not that: another session, another step, or the wrong number of tokens. Then nothing changes.
        """
        sent = self._in_flight.oldest()
        if (
            sent is None
            or answer.session != self.worker.session
            or answer.step != sent.step
            or (isinstance(answer, Result) and len(answer.token) != len(sent.sampled))
        ):
            self.counters.dropped_answers += 1
            return False
        self._in_flight.give_back()
        current = self._slots.epoch[sent.slots] == sent.epochs
        self.counters.wasted_rows += len(current) - int(np.count_nonzero(current))
        if isinstance(answer, Result):
            self._settle_result(sent, current, answer, now)
        else:
            self._settle_failure(sent.slots[current], answer, now)
        return True

    def _settle_result(self, sent: SentPlan, current: NDArray[np.bool_], answer: Result, now: float) -> None:
        slots = self._slots
        valid = current[sent.sampled]
        rows = sent.slots[sent.sampled][valid]
        token = answer.token[valid]
        status = answer.status[valid]
        if status.any():
            for slot in rows[status != RowStatus.OK].tolist():
                self._end(self._running(slot), Finish.ERROR, now, "the model's output was not a number (NaN)")
            rows, token = rows[status == RowStatus.OK], token[status == RowStatus.OK]
        length = slots.settled_len[rows]
        self._history.write_rows(slots.table, rows, length - 1, slots.newest[rows])
        slots.newest[rows] = token
        slots.newest_at[rows] = now
        slots.settled_len[rows] = length + 1
        self.counters.settled_tokens += len(rows)
        self.outstanding_tokens -= len(rows)
        # Only rows at which something happens are looked at one by one.
        for slot in rows[length == slots.known_len[rows]].tolist():
            self._first_since_admission(self._running(slot), now)
        stopped = (token[:, None] == slots.stop_ids[rows]).any(1)
        full = length + 1 == slots.final_len[rows]
        for slot in rows[stopped].tolist():
            self._end(self._running(slot), Finish.STOP, now)
        for slot in rows[full & ~stopped].tolist():
            self._end(self._running(slot), Finish.LENGTH, now)

    def _first_since_admission(self, request: Request, now: float) -> None:
        request.strikes = 0
        if request.first_token == NEVER:
            request.first_token = now

    def _settle_failure(self, rows: NDArray[np.int32], failure: Failed, now: float) -> None:
        """Begin again with every request on board, from the tokens that have settled; end the one that keeps failing.

        Steps that were only queued behind a failed one cost their requests nothing but the way back.
        """
        self.counters.failed_steps += 1
        for slot in rows.tolist():
            request = self._running(slot)
            request.strikes += failure.ran
            if request.strikes >= MAX_STRIKES:
                self._end(request, Finish.ERROR, now, f"computing it failed repeatedly: {failure.error}")
            else:
                self._leave_slot(request)

    # ------------------------------------------------------------------ leaving

    def _running(self, slot: int) -> Request:
        request = self._slots.request[slot]
        assert request is not None
        return request

    def _preempt(self, slot: int) -> None:
        self.counters.preemptions += 1
        self._leave_slot(self._running(slot))

    def _leave_slot(self, request: Request) -> None:
        """Take a running request's slot and blocks away; it waits again, at its old place, with its tokens so far."""
        self._release(request)
        if len(request.unsent):
            self._behind[request.key] = request
        request.resumed = True
        self._waiting.push(request)

    def _end(self, request: Request, why: Finish, now: float, error: str = "") -> None:
        """End an accepted request, once and for all."""
        request.finish = why
        del self._requests[request.key]
        self._behind.pop(request.key, None)
        if request.slot < 0:
            self._waiting.ended(request)
        else:
            self._release(request)
        self.outstanding_tokens -= max(0, request.final_len - request.waiting_len)
        self._outbox.ended(request, error, now)

    def _release(self, request: Request) -> None:
        """Give back slot and blocks at once; the request keeps its tokens and cursor itself from now on.

        Rows still in flight write into these blocks, but before anything that is planned from now on: the device
        works in order.
        """
        slots, slot = self._slots, request.slot
        settled = int(slots.settled_len[slot])
        request.output = self._tokens(slot, request.prompt_len, settled)
        request.sent = int(slots.sent_len[slot]) - request.prompt_len
        request.last_token = float(slots.newest_at[slot])
        self._blocks.give_back(slots.table[slot, : slots.table_len[slot]])
        slots.give_back(slot)

    def _tokens(self, slot: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Return a running request's tokens at [start, stop); stop is at most settled_len."""
        slots = self._slots
        if stop <= start:
            return _NO_TOKENS
        if stop < slots.settled_len[slot]:
            return self._history.read(slots.table[slot], start, stop)
        before = self._history.read(slots.table[slot], start, stop - 1) if start < stop - 1 else _NO_TOKENS
        return np.append(before, slots.newest[slot])

    # ------------------------------------------------------------------ deltas

    def take_deltas(self, withhold: Container[int] = ()) -> list[tuple[int, Deltas]]:
        """Return what each client has not been given yet, as (client, message), and count it as given.

        Clients in `withhold` get theirs later, in one piece: their cursors stay where they are.
        """
        slots = self._slots
        news = np.flatnonzero(slots.live & (slots.settled_len > slots.sent_len))
        news = news[np.argsort(slots.client[news], kind="stable")]
        clients, starts = np.unique(slots.client[news], return_index=True)
        runs: dict[int, NDArray[np.intp]] = dict(zip(clients.tolist(), np.split(news, starts[1:]), strict=False))
        deltas = []
        behind = {request.client for request in self._behind.values()}
        for client in sorted(runs.keys() | self._outbox.clients() | behind):
            if client not in withhold:
                deltas.append((client, self._deltas(client, runs.get(client, news[:0]))))
        return deltas

    def _deltas(self, client: int, rows: NDArray[np.intp]) -> Deltas:
        slots = self._slots
        start, stop = slots.sent_len[rows], slots.settled_len[rows]
        count = stop - start
        if (count == 1).all():
            token = slots.newest[rows]
        else:
            runs = zip(rows.tolist(), start.tolist(), stop.tolist(), strict=True)
            token = np.concatenate([self._tokens(*run) for run in runs])
        offset = start - slots.prompt_len[rows]
        slots.sent_len[rows] = stop
        pieces = self._outbox.take(client)
        for request in [request for request in self._behind.values() if request.client == client]:
            del self._behind[request.key]
            pieces.append(waiting_piece(request))
        return deltas_of(
            self._session, pieces, slots.request_id[rows], offset.view(np.uint32), count.view(np.uint32), token
        )

    # ------------------------------------------------------------------ state

    @property
    def running(self) -> int:
        """How many requests hold a slot."""
        return self._slots.total - self._slots.free

    @property
    def waiting(self) -> int:
        """How many requests wait for one."""
        return len(self._waiting)

    @property
    def plans_in_flight(self) -> int:
        """How many plans are unanswered."""
        return len(self._in_flight)

    @property
    def last_settled(self) -> int:
        """The newest step whose answer was taken."""
        return self._in_flight.last_settled

    @property
    def free_blocks(self) -> int:
        """How many KV blocks nobody owns."""
        return self._blocks.free

    def check(self) -> None:
        """Assert what must hold between any two verbs; slow, for tests and idle moments."""
        slots = self._slots
        self._in_flight.check()
        self._waiting.check()
        slots.check()
        live = np.flatnonzero(slots.live)
        held: list[Any] = [slots.table[slot, : slots.table_len[slot]] for slot in live]
        self._blocks.check(np.concatenate(held) if held else np.zeros(0, np.int32))
        room = slots.table_len[live] * self._blocks.block_size
        assert (slots.planned_len[live] <= room).all(), "a row was sent without a block for it"
        assert len(self._requests) == self.running + self.waiting, "a request is neither waiting nor running"
        unsent = {r.key for r in self._requests.values() if r.slot < 0 and len(r.unsent)}
        assert unsent == self._behind.keys(), "a preempted request's tokens would not be sent before it runs again"
        owed = 0
        for request in self._requests.values():
            assert request.finish is Finish.RUNNING, "a request that has ended is still known"
            length = int(slots.settled_len[request.slot]) if request.slot >= 0 else request.waiting_len
            owed += request.final_len - length
            if request.slot >= 0:
                tokens = self._tokens(request.slot, 0, length)
                known = request.waiting_tokens()
                assert np.array_equal(tokens[: len(known)], known), "a running request's tokens were overwritten"
        assert owed == self.outstanding_tokens, f"{owed} tokens are outstanding, {self.outstanding_tokens} are counted"

    def _problem(self, ask: Submit) -> str:
        """Return why a request can never be served, or nothing."""
        vocab_size, max_model_len = self.worker.vocab_size, self.worker.max_model_len
        if not len(ask.prompt):
            return "the prompt is empty"
        if len(ask.prompt) >= max_model_len:
            return f"the prompt has {len(ask.prompt)} tokens; it must be shorter than the context of {max_model_len}"
        for tokens in (ask.prompt, ask.output, ask.stop_token_ids):
            if len(tokens) and tokens.max() >= vocab_size:
                return f"token id {tokens.max()} is outside of the vocabulary of {vocab_size}"
        return ""

    def _end_tokens(self, ask: Submit) -> NDArray[np.uint32]:
        own = ask.stop_token_ids
        return own if ask.ignore_eos else np.concatenate((self.worker.eos_token_ids, own))


def check_capacity(worker: Opened) -> None:
    """Raise `CapacityError` unless the worker's pool holds one request of `max_model_len` tokens.

    The last token of a request is never an input and needs no place.
    """
    positions = worker.max_model_len - 1
    if worker.blocks * worker.block_size < positions:
        raise CapacityError(
            f"the KV cache holds {worker.blocks} blocks of {worker.block_size} = {worker.blocks * worker.block_size} "
            f"tokens, less than one request of --max-model-len {worker.max_model_len}: lower that, or raise the cache"
        )
    if worker.max_batch_tokens < worker.slots:
        raise CapacityError(
            f"--max-batch-tokens {worker.max_batch_tokens} is less than --max-num-seqs {worker.slots}: "
            "a step must have room for one token of every running request"
        )
