"""The schedulers of several workers, seen as one: who serves a request, and where it goes when a worker is lost."""

from __future__ import annotations

from collections.abc import Container
from math import inf

from protocol.messages import Deltas, Failed, Finish, Load, Opened, Plan, Result, Submit, Totals
from scheduler_proc.core import Scheduler
from scheduler_proc.counters import Counters
from scheduler_proc.policy import FIRST_COME, Policy

PATIENCE_SECONDS = 30.0
"""Without any worker for so long, requests end with an error rather than wait on."""


class Fleet:
    """One `Scheduler` for each worker that ever opened a session, by the worker's number."""

    def __init__(
        self,
        credit: int,
        session: int,
        *,
        prefix_caching: bool = True,
        policy: Policy = FIRST_COME,
        max_prefill_tokens: int | None = None,
        max_waiting: int = 0,
    ) -> None:
        """Begin without workers; each gets `credit`, and all deltas carry `session`. The rest is as in `Scheduler`.

        While `max_waiting` requests wait for others to end, at all workers together, no more are accepted; 0 is no
        such limit.
        """
        self._credit = credit
        self._prefix_caching = prefix_caching
        self._policy = policy
        self._max_prefill_tokens = max_prefill_tokens
        self._max_waiting = max_waiting
        self._session = session
        self._schedulers: dict[int, Scheduler] = {}
        self._open: set[int] = set()
        self._none_since = inf  # since when requests have had no worker

    # ------------------------------------------------------------------ workers

    def worker_opened(self, worker: int, opened: Opened, now: float) -> None:
        """Begin to schedule for a worker, or go on after it was lost. Raises `CapacityError`."""
        if worker in self._schedulers:
            self._schedulers[worker].reopen(opened, now)
        else:
            self._schedulers[worker] = Scheduler(
                opened,
                self._credit,
                self._session,
                prefix_caching=self._prefix_caching,
                policy=self._policy,
                max_prefill_tokens=self._max_prefill_tokens,
            )
        self._open.add(worker)
        self._none_since = inf
        for other in self._schedulers.keys() - self._open:
            self._schedulers[worker].adopt(self._schedulers[other].abandon(), now)

    def worker_lost(self, worker: int, now: float, *, died: bool) -> None:
        """Note that a worker's session is over. Its requests go to others, or wait for it if there are none."""
        if worker not in self._open:
            return
        self._open.remove(worker)
        lost = self._schedulers[worker]
        lost.lose_worker(now, died=died)
        if self._open:
            self._least_loaded().adopt(lost.abandon(), now)
        else:
            self._none_since = now

    def plan(self, worker: int, now: float) -> Plan | None:
        """Return the next step for a worker, or None."""
        return self._schedulers[worker].plan(now) if worker in self._open else None

    def settle(self, worker: int, answer: Result | Failed, now: float) -> bool:
        """Take a worker's answer; False if it answers nothing that was asked."""
        return worker in self._open and self._schedulers[worker].settle(answer, now)

    def catch_up(self) -> None:
        """Do what can wait until plans are on their way."""
        for worker in self._open:
            self._schedulers[worker].catch_up()

    def reset_prefix_cache(self) -> int:
        """Forget, at every worker, what was computed so far, as `Scheduler` does; return how many blocks in all."""
        return sum(self._schedulers[worker].reset_prefix_cache() for worker in self._open)

    def lacks_answer(self, worker: int, step: int) -> bool:
        """Whether a worker that has answered up to `step` has answered something that never came."""
        oldest = self._schedulers[worker].oldest_step if worker in self._open else None
        return oldest is not None and step >= oldest

    # ------------------------------------------------------------------ clients

    def submit(self, client: int, ask: Submit, now: float) -> None:
        """Give a request to the worker with the fewest tokens outstanding; there has been a worker.

        One that is live already is not taken again, wherever it is. One that was accepted before, and then lost, is
        taken however many wait: it must have its end.
        """
        schedulers = self._schedulers.values()
        if any(scheduler.knows(client, ask.request) for scheduler in schedulers):
            return
        chosen = self._least_loaded()
        if 0 < self._max_waiting <= sum(scheduler.queued for scheduler in schedulers) and not ask.again:
            chosen.turn_away(
                client, ask.request, f"{self._max_waiting} requests wait already, as many as may: try later"
            )
        else:
            chosen.submit(client, ask, now)

    def abort(self, client: int, request: int, now: float) -> None:
        """End a request wherever it is; an unknown one is dropped."""
        any(scheduler.abort(client, request, now) for scheduler in self._schedulers.values())

    def drop_client(self, client: int, now: float) -> None:
        """Abort all requests of a client that is gone."""
        for scheduler in self._schedulers.values():
            scheduler.drop_client(client, now)

    def expire(self, now: float) -> None:
        """End what is overdue, and everything if there has been no worker for too long."""
        for scheduler in self._schedulers.values():
            scheduler.expire(now)
            if now >= self._none_since + PATIENCE_SECONDS:
                scheduler.end_all(Finish.ERROR, now, "no worker is left to compute it")

    def take_deltas(self, withhold: Container[int]) -> list[tuple[int, Deltas]]:
        """Return what the clients have not been told, as (client, message), but nothing for those in `withhold`."""
        return [deltas for scheduler in self._schedulers.values() for deltas in scheduler.take_deltas(withhold)]

    def pieces(self, client: int) -> int:
        """How many ended requests a client has not been told of."""
        return sum(scheduler.pieces(client) for scheduler in self._schedulers.values())

    # ------------------------------------------------------------------ state

    @property
    def opened(self) -> Opened | None:
        """What the narrowest worker said of itself, None before there was one: what clients may ask for."""
        workers = [scheduler.worker for scheduler in self._schedulers.values()]
        return min(workers, key=lambda worker: worker.max_model_len) if workers else None

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do next; inf if never."""
        deadlines = [scheduler.next_deadline for scheduler in self._schedulers.values()]
        if any(scheduler.waiting for scheduler in self._schedulers.values()):
            deadlines.append(self._none_since + PATIENCE_SECONDS)
        return min(deadlines, default=inf)

    @property
    def busy(self) -> bool:
        """Whether a worker computes."""
        return any(self._schedulers[worker].plans_in_flight for worker in self._open)

    def counters(self, worker: int) -> Counters:
        """Return what the scheduler of a worker, which must have opened a session once, has counted."""
        return self._schedulers[worker].counters

    def load(self, time: int) -> Load:
        """Return how much there is to do at `time`, which is the timeline's."""
        schedulers = self._schedulers.values()
        blocks = sum(scheduler.worker.blocks for scheduler in schedulers)
        return Load(
            time=time,
            running=sum(scheduler.running for scheduler in schedulers),
            waiting=sum(scheduler.waiting for scheduler in schedulers),
            blocks_used=blocks - sum(scheduler.free_blocks for scheduler in schedulers),
            blocks=blocks,
            settled_tokens=sum(scheduler.counters.settled_tokens for scheduler in schedulers),
        )

    def totals(self, busy: float, plan_bytes: int) -> Totals:
        """Return how much there is to do and what was counted.

        `busy` are the seconds that devices have computed, `plan_bytes` the bytes of what they were sent.
        """
        load, all_counters = self.load(0), [scheduler.counters for scheduler in self._schedulers.values()]
        return Totals(
            session=self._session,
            running=load.running,
            waiting=load.waiting,
            blocks_used=load.blocks_used,
            blocks=load.blocks,
            steps=sum(counters.steps for counters in all_counters),
            rows=sum(counters.rows for counters in all_counters),
            wasted_rows=sum(counters.wasted_rows for counters in all_counters),
            failed_steps=sum(counters.failed_steps for counters in all_counters),
            stale_results=sum(counters.dropped_answers for counters in all_counters),
            preemptions=sum(counters.preemptions for counters in all_counters),
            prefill_tokens=sum(counters.prefill_tokens for counters in all_counters),
            cached_tokens=sum(counters.cached_tokens for counters in all_counters),
            busy=busy,
            plan_bytes=plan_bytes,
        )

    def check(self) -> None:
        """Assert what must hold between any two verbs; slow, for tests."""
        for worker, scheduler in self._schedulers.items():
            scheduler.check()
            if worker not in self._open:
                assert scheduler.running == scheduler.plans_in_flight == 0, "something runs on a lost worker"
                assert not self._open or not scheduler.waiting, "requests wait for a lost worker beside others"

    def _least_loaded(self) -> Scheduler:
        among = self._open or self._schedulers.keys()
        return min((self._schedulers[worker] for worker in sorted(among)), key=lambda s: s.outstanding_tokens)
