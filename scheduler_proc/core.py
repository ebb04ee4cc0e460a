"""The scheduler of one worker: events in, plans and deltas out. No sockets, no clock, no torch.

    submit, abort, expire ──►  Scheduler  ──► plan(now)        the next step, as long as there is credit
    settle(answer, now)   ──►             ──► take_deltas()    what the clients have not been told

Lengths move when a plan is sent, tokens when its answer comes. Between the two, a request may end, be aborted or lose
its slot: that ends the slot's epoch, and whatever rows are still in flight mean nothing when they come back. No other
special case exists.
"""

from __future__ import annotations

from collections.abc import Container
from math import inf

import numpy as np
from numpy.typing import NDArray

from protocol.logprobs import MOST_LOGPROBS, NOTHING, Scores
from protocol.messages import Deltas, Failed, Finish, Opened, Plan, Result, RowStatus, Submit
from scheduler_proc.capacity import check_capacity, refusal
from scheduler_proc.counters import Counters
from scheduler_proc.deadlines import Deadlines
from scheduler_proc.in_flight import InFlight, SentPlan
from scheduler_proc.outbox import MOST_LISTED, Outbox, Piece, deltas_of, score_piece, waiting_piece
from scheduler_proc.plan_builder import PlanBuilder
from scheduler_proc.planner import Planner
from scheduler_proc.policy import FIRST_COME, Policy
from scheduler_proc.request import NEVER, Key, Request
from scheduler_proc.running import Running
from scheduler_proc.waiting import WaitingQueue

MAX_STRIKES = 3
"""A request that was on board of so many failed steps in a row is what makes them fail: it ends with an error."""

MAX_DEATHS = 2
"""A request that was on board when so many workers died gets an error, before it takes the next one along."""

FORGIVEN_AFTER = 256
"""A worker's death counts no more for a request that has gained so many tokens since."""


class Scheduler:
    """Decides for one worker who runs, in which blocks, and what comes next.

    Time is in seconds on any clock that never goes back. Requests of one client are told apart by the client's own
    counter; `client` is any int that the caller gives to a client.
    """

    def __init__(
        self,
        worker: Opened,
        credit: int,
        session: int,
        *,
        prefix_caching: bool = True,
        policy: Policy = FIRST_COME,
        max_prefill_tokens: int | None = None,
    ) -> None:
        """Schedule for the worker that `Opened` a session, with at most `credit` plans unanswered.

        `session` is the scheduler's own, which Deltas carry. With `prefix_caching` no KV is computed that a request
        with the same beginning has left behind. `policy` says whose turn is first. A step has at most
        `max_prefill_tokens` tokens of prompts, if there is such a limit. Raises `CapacityError`.
        """
        self.counters = Counters()
        self.outstanding_tokens = 0
        """Tokens that may still have to be computed for the requests accepted: what balancing goes by."""
        self._session = session
        self._credit = credit
        self._prefix_caching = prefix_caching
        self._policy = policy
        self._max_prefill_tokens = max_prefill_tokens
        self._waiting = WaitingQueue()
        self._outbox = Outbox()
        self._requests: dict[Key, Request] = {}
        self._behind: dict[Key, Request] = {}  # preempted before their client was given all of their tokens
        self._scored: dict[Key, Request] = {}  # those with scores that their clients were not given
        self._deadlines = Deadlines()
        self._arrivals = 0
        self._begin_session(worker)

    def _begin_session(self, worker: Opened) -> None:
        check_capacity(worker)
        self.worker = worker
        self._running = Running(worker, prefix_caching=self._prefix_caching)
        self._in_flight = InFlight(self._credit)
        most = worker.max_batch_tokens
        prefill = most if self._max_prefill_tokens is None else self._max_prefill_tokens
        self._planner = Planner(self._running, self._waiting, most, prefill, self._preempt)

    # ------------------------------------------------------------------ clients

    def submit(self, client: int, ask: Submit, now: float) -> None:
        """Accept a request, or note for its client why it is refused. A live request's id is not taken again."""
        if self.knows(client, ask.request):
            return  # a duplicate: the first one goes on, and its deltas answer both
        if problem := refusal(ask, self.worker) or self._policy.refusal(ask):
            self._outbox.refused(client, ask.request, problem)
            return
        request = Request(
            client=client,
            ask=ask,
            rank=self._policy.rank(client, ask, now),
            order=0,
            final_len=len(ask.prompt) + ask.max_tokens,
            arrived=now,
            deadline=now + ask.timeout if ask.timeout else inf,
            output=ask.output,
            sent=len(ask.output),
            resumed=len(ask.output) > 0,
            scored=0 if ask.prompt_logprobs is None else ask.scores_told,
        )
        self._accept(request, now)

    def turn_away(self, client: int, request: int, why: str) -> None:
        """Note for a client that its request is not accepted now, and why."""
        self.counters.turned_away += 1
        self._outbox.refused(client, request, why, Finish.BUSY)

    def _accept(self, request: Request, now: float) -> None:
        self._arrivals += 1
        request.order = self._arrivals
        request.final_len = min(request.final_len, self.worker.max_model_len)
        self._requests[request.key] = request
        self.outstanding_tokens += max(0, request.final_len - request.waiting_len)
        self._waiting.push(request)
        self._deadlines.add(request)
        if len(request.output) and request.output[-1] in request.ends_at(self.worker.eos_token_ids):
            self._end(request, Finish.STOP, now)
        elif request.waiting_len >= request.final_len:
            self._end(request, Finish.LENGTH, now)

    def knows(self, client: int, request: int) -> bool:
        """Whether a request of that id is waiting or running."""
        return (client, request) in self._requests

    def abort(self, client: int, request: int, now: float, why: Finish = Finish.ABORT) -> bool:
        """End a request, whatever its state; False if there is none of that id (any more)."""
        found = self._requests.get((client, request))
        if found is None:
            return False
        self._end(found, why, now)
        return True

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
        for request in self._deadlines.passed(now):
            self._end(request, Finish.TIMEOUT, now)

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do next; inf if never."""
        return self._deadlines.next

    # ------------------------------------------------------------------ steps

    def plan(self, now: float) -> Plan | None:
        """Return the next step to send, or None: no credit, or nothing to run.

        Running requests that decode come first, one token each; what is left of the token budget goes to prompts, in
        the policy's order, chunk by chunk.
        """
        if not self._in_flight.may_send:
            return None
        builder = PlanBuilder(self._running.slots, self.worker)
        for request in self._planner.fill(builder, now):
            self._behind.pop(request.key, None)  # its slot's cursor takes over
            self._policy.began(request.rank)
            self.counters.cached_tokens += len(request.prefix.blocks) * self.worker.block_size
        if builder.empty:
            return None
        plan, sent = builder.build(self.worker.session, self._in_flight)
        self._in_flight.take(sent)
        self.counters.steps += 1
        self.counters.rows += len(sent.slots)
        self.counters.prefill_tokens += len(plan.token)
        return plan

    def settle(self, answer: Result | Failed, now: float) -> bool:
        """Take a worker's answer to the oldest plan in flight.

        False if it is not that: another session, another step, or the wrong number of tokens or scores. Then nothing
        changes.
        """
        sent = self._in_flight.oldest()
        if (
            sent is None
            or answer.session != self.worker.session
            or answer.step != sent.step
            or (isinstance(answer, Result) and not _fits(answer, sent))
        ):
            self.counters.dropped_answers += 1
            return False
        self._in_flight.give_back()
        current = self._running.slots.epoch[sent.slots] == sent.epochs
        wasted = len(current) - int(np.count_nonzero(current))
        self.counters.wasted_rows += wasted
        if isinstance(answer, Result):
            self._settle_result(sent, current if wasted else None, answer, now)
        else:
            self._settle_failure(sent.slots[current], answer, now)
        return True

    def _settle_result(self, sent: SentPlan, current: NDArray[np.bool_] | None, answer: Result, now: float) -> None:
        """Take in what a step has given; `current` says which of its rows still mean something, None for all."""
        running, slots = self._running, self._running.slots
        rows, token, status = sent.slots[sent.sampled], answer.token, answer.status
        wanted = slots.listed[rows]
        if np.count_nonzero(wanted):
            self._keep_logprobs(rows, wanted if current is None else wanted & current[sent.sampled], answer)
        if (scores := answer.scores) is not None:
            self._keep_scores(sent, current, scores)
        if current is None:
            slots.computed_len[sent.slots] = sent.ends
        else:
            slots.computed_len[sent.slots[current]] = sent.ends[current]
            valid = current[sent.sampled]
            rows, token, status = rows[valid], token[valid], status[valid]
        if np.count_nonzero(status):
            usable = status == RowStatus.OK
            for slot in rows[~usable].tolist():
                running.cache.distrust(slot)
                self._end(running.request(slot), Finish.ERROR, now, "the model's output was not a number (NaN)")
            rows, token = rows[usable], token[usable]
        length = running.append(rows, token, now)
        self.counters.settled_tokens += len(rows)
        self.outstanding_tokens -= len(rows)
        # Only rows at which something happens are looked at one by one.
        for slot in rows[length == slots.known_len[rows]].tolist():
            request = running.request(slot)
            request.strikes = 0
            if request.first_token == NEVER:
                request.first_token = now
        full = rows[length + 1 == slots.final_len[rows]]
        for slot in slots.stopped(rows, token).tolist():
            self._end(running.request(slot), Finish.STOP, now)
        for slot in full[slots.live[full]].tolist():
            self._end(running.request(slot), Finish.LENGTH, now)

    def _keep_logprobs(self, rows: NDArray[np.intp], wanted: NDArray[np.bool_], answer: Result) -> None:
        """Keep what an answer says of the tokens of some of its rows, until their clients are given them."""
        said, wanting = answer.logprobs, np.flatnonzero(wanted)
        each = [NOTHING] * len(wanting) if said is None else said.of(wanting.tolist())
        for slot, logprobs in zip(rows[wanting].tolist(), each, strict=True):
            self._running.request(slot).logprobs.append(logprobs)

    def _keep_scores(self, sent: SentPlan, current: NDArray[np.bool_] | None, scores: Scores) -> None:
        """Keep what an answer says of the prompts of those of its rows that still mean something."""
        taken = 0
        for row, count in sent.scored:
            if current is None or current[row]:
                request = self._running.request(int(sent.slots[row]))
                request.scores.append(scores.part(taken, taken + count))
                request.scored += count
                self._scored[request.key] = request
            taken += count

    def _settle_failure(self, rows: NDArray[np.intp], failure: Failed, now: float) -> None:
        """Begin again with every request on board, from the tokens that have settled; end the one that keeps failing.

        Steps that were only queued behind a failed one cost their requests nothing but the way back.
        """
        self.counters.failed_steps += 1
        for slot in rows.tolist():
            request = self._running.request(slot)
            request.strikes += failure.ran
            if request.strikes >= MAX_STRIKES:
                self._end(request, Finish.ERROR, now, f"computing it failed repeatedly: {failure.error}")
            else:
                self._wait_again(request)

    def catch_up(self) -> None:
        """Do what can wait until plans are on their way, and would else delay a later one."""
        self._running.catch_up()

    def reset_prefix_cache(self) -> int:
        """Let nothing that was computed so far serve who begins from now on; return how many blocks are forgotten.

        Cached blocks that nobody uses are blank then. Those who run keep theirs, and lose no token.
        """
        return self._running.cache.reset()

    # ------------------------------------------------------------------ leaving

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        self._wait_again(request)

    def _wait_again(self, request: Request) -> None:
        """Let a running request wait at its old place, with its tokens so far."""
        self._running.leave(request)
        if len(request.unsent):
            self._behind[request.key] = request
        request.resumed = True
        self._waiting.push(request)

    def _end(self, request: Request, why: Finish, now: float, error: str = "") -> None:
        """End an accepted request, once and for all."""
        request.finish = why
        del self._requests[request.key]
        self._behind.pop(request.key, None)
        self._scored.pop(request.key, None)
        self._deadlines.ended(request)
        if request.first_planned == NEVER:
            self._policy.left(request.client, request.ask, request.rank)
        if request.slot < 0:
            self._waiting.ended(request)
        else:
            self._running.leave(request)
        self.outstanding_tokens -= max(0, request.final_len - request.waiting_len)
        self._outbox.ended(request, error, now)

    # ------------------------------------------------------------------ workers

    def lose_worker(self, now: float, *, died: bool = True) -> None:
        """Note that the worker is gone, with all its KV: those who ran wait for another session, from their tokens.

        With `died`, they are noted as having been on board of a worker that died.
        """
        for request in self._running.requests():
            if died:
                length = int(self._running.slots.settled_len[request.slot])
                request.deaths = request.deaths + 1 if length - request.died_at < FORGIVEN_AFTER else 1
                request.died_at = length
            if request.deaths >= MAX_DEATHS:
                self._end(request, Finish.ERROR, now, f"{request.deaths} workers died while they computed it")
            else:
                self._wait_again(request)
        self._in_flight = InFlight(0)

    def reopen(self, worker: Opened, now: float) -> None:
        """Begin a new session, with the same worker or another, after `lose_worker`.

        Raises `CapacityError`, and then nothing has changed.
        """
        check_capacity(worker)
        requests = self.abandon()
        self._begin_session(worker)
        self.adopt(requests, now)

    def abandon(self) -> list[Request]:
        """Give up every request (none runs: the worker is lost), with its tokens so far, for a scheduler to `adopt`."""
        requests = self._waiting.requests()
        self._waiting.clear()
        self._requests.clear()
        self._behind.clear()
        self._scored.clear()
        self._deadlines.clear()
        self.outstanding_tokens = 0
        return requests

    def adopt(self, requests: list[Request], now: float) -> None:
        """Take over requests that a scheduler of the same model gave up by `abandon`, each at its old place."""
        for request in sorted(requests, key=lambda request: (request.rank, request.order)):
            if len(request.unsent):
                self._behind[request.key] = request
            if request.scores:
                self._scored[request.key] = request
            self._accept(request, now)

    # ------------------------------------------------------------------ deltas

    def take_deltas(self, withhold: Container[int] = ()) -> list[tuple[int, Deltas]]:
        """Return what each client has not been given yet, as (client, message), and count it as given.

        To be called again until it returns nothing: a message tells of a limited number of ended requests, and of log
        probabilities. Clients in `withhold` get theirs later, in one piece: their cursors stay where they are.
        """
        slots = self._running.slots
        news = np.flatnonzero(slots.live & (slots.settled_len > slots.sent_len))
        news = news[np.argsort(slots.client[news], kind="stable")]
        numbers, starts = np.unique(slots.client[news], return_index=True)
        rows_of = dict(zip(numbers.tolist(), np.split(news, starts[1:]), strict=False))
        behind = {request.client for request in (*self._behind.values(), *self._scored.values())}
        clients = sorted(rows_of.keys() | self._outbox.clients() | behind)
        return [(each, self._deltas(each, rows_of.get(each, news[:0]))) for each in clients if each not in withhold]

    def _deltas(self, client: int, rows: NDArray[np.intp]) -> Deltas:
        slots = self._running.slots
        pieces = self._outbox.take(client)
        more = self._take_scores(client, pieces) if self._scored else False
        if more:
            rows = rows[:0]  # a prompt's scores come before its tokens
        if slots.listed[rows].any():
            rows = self._fewer(rows)
        start, stop = slots.sent_len[rows], slots.settled_len[rows]
        count = stop - start
        token = slots.newest[rows] if (count == 1).all() else self._running.gather(rows, start, stop)
        offset = start - slots.prompt_len[rows]
        slots.sent_len[rows] = stop
        listed = {
            row: logprobs
            for row in np.flatnonzero(slots.listed[rows]).tolist()
            if (logprobs := self._running.request(int(rows[row])).take_logprobs(int(count[row]))) is not None
        }
        for request in [request for request in self._behind.values() if request.client == client and not more]:
            del self._behind[request.key]
            pieces.append(waiting_piece(request))
        return deltas_of(
            self._session,
            pieces,
            slots.request_id[rows],
            offset.view(np.uint32),
            count.view(np.uint32),
            slots.cached[rows].view(np.uint32),
            token,
            listed,
        )

    def _take_scores(self, client: int, pieces: list[Piece]) -> bool:
        """Add pieces for what is new of a client's prompts, as long as a message has room; whether there is more."""
        slots, listed = self._running.slots, sum(piece.listed for piece in pieces)
        for request in [request for request in self._scored.values() if request.client == client]:
            if listed > MOST_LISTED:
                return True
            sent = request.sent if request.slot < 0 else int(slots.sent_len[request.slot]) - request.prompt_len
            pieces.append(score_piece(request, sent))
            listed += pieces[-1].listed
            del self._scored[request.key]
        return False

    def _fewer(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the first of some slots, with as many log probabilities as a message may have; the first always."""
        slots = self._running.slots
        news = slots.settled_len[rows] - slots.sent_len[rows]
        listed = np.cumsum(np.where(slots.listed[rows], news, 0)) * (1 + MOST_LOGPROBS)
        return rows[: max(1, int(np.count_nonzero(listed <= MOST_LISTED)))]

    def pieces(self, client: int) -> int:
        """How many ended requests a client has not been told of."""
        return self._outbox.count(client)

    # ------------------------------------------------------------------ state

    @property
    def running(self) -> int:
        """How many requests hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many requests wait for one."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """How many requests wait beyond those for whom a slot is free: they need the end of others."""
        return max(0, len(self._waiting) - self._running.slots.free)

    @property
    def plans_in_flight(self) -> int:
        """How many plans are unanswered."""
        return len(self._in_flight)

    @property
    def oldest_step(self) -> int | None:
        """The step whose answer comes next, None if nothing is in flight."""
        oldest = self._in_flight.oldest()
        return None if oldest is None else oldest.step

    @property
    def free_blocks(self) -> int:
        """How many KV blocks nobody uses; what is cached in them gives way to whoever needs them."""
        return self._running.blocks.free

    def check(self) -> None:
        """Assert what must hold between any two verbs; slow, for tests and idle moments."""
        self._in_flight.check()
        self._waiting.check()
        self._deadlines.check()
        self._running.check()
        assert len(self._requests) == self.running + self.waiting, "a request is neither waiting nor running"
        behind = {request.key for request in self._requests.values() if request.slot < 0 and len(request.unsent)}
        assert behind == self._behind.keys(), "a preempted request's tokens would not be sent before it runs again"
        scored = {request.key for request in self._requests.values() if request.scores}
        assert scored == self._scored.keys(), "a prompt's scores would not be sent"
        owed = 0
        for request in self._requests.values():
            assert request.finish is Finish.RUNNING, "a request that has ended is still known"
            running = request.slot >= 0
            if running:
                computed = int(self._running.slots.computed_len[request.slot])
                assert request.scored >= min(computed, request.to_score), "what was computed of a prompt is not scored"
            if request.ask.logprobs is not None:
                slots, slot = self._running.slots, request.slot
                unsent = slots.settled_len[slot] - slots.sent_len[slot] if running else len(request.unsent)
                assert len(request.logprobs) == unsent, "a token's log probabilities are lost, or not its own"
            owed += request.final_len - (
                self._running.slots.settled_len[request.slot] if running else request.waiting_len
            )
        assert owed == self.outstanding_tokens, f"{owed} tokens are outstanding, {self.outstanding_tokens} are counted"


def _fits(answer: Result, sent: SentPlan) -> bool:
    """Whether a result says as much as was asked."""
    scores = answer.scores
    return len(answer.token) == sent.samples and (0 if scores is None else len(scores)) == sent.scores
