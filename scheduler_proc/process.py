"""The scheduler process: sockets and a clock around the core."""

from __future__ import annotations

import gc
import logging
import os
import time

import zmq

from protocol.awake_clock import AwakeClock
from protocol.codec import decode
from protocol.drop_log import DropLog
from protocol.endpoints import clear_away
from protocol.errors import ProtocolError
from protocol.identity import new_session
from protocol.lifeline import Lifeline
from protocol.messages import (
    Abort,
    AskTotals,
    Attach,
    Failed,
    Joined,
    Opened,
    Ping,
    Pong,
    PrefixCacheReset,
    ResetPrefixCache,
    Result,
    SpanKind,
    Submit,
)
from protocol.sockets import (
    LONGEST_TURN_SECONDS,
    PULSE_SECONDS,
    RETRY_SECONDS,
    Received,
    bind_router,
    receive_from_peer,
)
from protocol.stop_signal import StopSignal
from scheduler_proc.capacity import CapacityError
from scheduler_proc.clients import Clients
from scheduler_proc.config import SchedulerConfig, SchedulingConfig
from scheduler_proc.fleet import Fleet
from scheduler_proc.worker_link import WorkerLink
from timeline.link import TimelineLink, this_host
from timeline.recorder import About, nanoseconds

INTAKE_PER_TURN = 64
"""Client messages taken in one turn while workers compute: intake must not hold up the next plan."""

IDLE_INTAKE_SECONDS = 0.02
"""How long an idle scheduler takes in what has come before it plans: what arrived together starts together."""

MOST_PIECES_WAITING = 100_000
"""A client that reads nothing while so many of its requests end is forgotten."""

COLLECT_SECONDS = 30.0
"""How often an idle scheduler collects garbage."""

_log = logging.getLogger("stepahead.scheduler")


class StartError(Exception):
    """The scheduler can't begin to serve; the text is for the user."""


class SchedulerProcess:
    """One turn: answers first (receive, settle, plan, send), then everything that can wait in the GPU's shadow."""

    def __init__(
        self, config: SchedulerConfig, scheduling: SchedulingConfig, lifeline: Lifeline, stop: StopSignal
    ) -> None:
        """Bind for clients and connect to the workers. Raises `ProtocolError` for an address that can't be had."""
        self._config = config
        self._step_timeout = scheduling.step_timeout
        self._lifeline = lifeline
        self._stop = stop
        self._session = new_session()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = bind_router(self._context, config.bind)
        self._links = [WorkerLink(self._context, address, scheduling.credit) for address in config.worker]
        self._fleet = Fleet(
            scheduling.credit,
            self._session,
            prefix_caching=scheduling.enable_prefix_caching,
            policy=scheduling.policy,
            max_prefill_tokens=scheduling.max_prefill_tokens,
            max_waiting=scheduling.max_waiting,
        )
        about = f"{scheduling.credit} plans in flight" if scheduling.credit > 1 else "lockstep"
        me = Joined(config.name, "scheduler", os.getpid(), this_host(), about=about)
        self._timeline = TimelineLink(self._context, config.timeline, me, self._fleet.load)
        self._recorder = self._timeline.recorder
        self._clients = Clients(self._router, self._session)
        self._dropped = DropLog(_log, "a client's message")
        self._clock = AwakeClock(longest_turn=LONGEST_TURN_SECONDS)
        self._started = self._clock.turn()
        self._collected = self._started
        self._poller = zmq.Poller()
        for waited_for in (stop, self._router, *[link.socket for link in self._links]):
            self._poller.register(waited_for, zmq.POLLIN)
        if self._timeline.socket is not None:
            self._poller.register(self._timeline.socket, zmq.POLLIN)

    def run(self) -> None:
        """Serve until told to stop. Raises `StartError` if no worker can be had in time."""
        # A full collection over many waiting requests takes longer than a step: none comes by itself, and what the
        # start has left behind is never looked at again.
        gc.disable()
        gc.collect()
        gc.freeze()
        self._timeline.greet()
        self._keep_house(self._started)  # the first word to the workers
        while not self._stop.is_set:
            began = nanoseconds()
            self._poller.poll(self._patience())
            self._recorder.add(SpanKind.WAIT if self._fleet.busy else SpanKind.IDLE, began)
            now = self._clock.turn()
            for number in range(len(self._links)):
                self._hear_worker(number, now)
            self._hear_clients(now)
            for number in range(len(self._links)):
                self._send_plans(number, now)
            self._deliver(now)
            self._keep_house(now)

    def close(self) -> None:
        """Let workers go, close all sockets."""
        for link in self._links:
            link.close()
        self._timeline.close()
        self._router.close()
        self._context.term()
        clear_away(self._config.bind)

    # ------------------------------------------------------------------ workers

    def _hear_worker(self, number: int, now: float) -> None:
        link = self._links[number]
        began = nanoseconds()
        try:
            while (message := link.receive(now)) is not None:
                if isinstance(message, Result | Failed):
                    self._settle(number, message, now, began)
                    self._send_plans(number, now)
                    began = nanoseconds()
                elif isinstance(message, Opened):
                    self._worker_opened(number, message, now)
                elif isinstance(message, Pong) and link.opened is not None:
                    if message.session != link.opened.session:
                        self._lose_worker(number, "it was restarted", now, died=True)
                    elif self._fleet.lacks_answer(number, message.step):
                        self._lose_worker(number, f"its answer to step {message.step} or one before it is lost", now)
        except ProtocolError as error:
            self._lose_worker(number, str(error), now)

    def _settle(self, number: int, answer: Result | Failed, now: float, began: int) -> None:
        """Settle an answer that has been received since `began`, by the timeline's clock."""
        about = About.of(answer.session, answer.step)
        began = self._recorder.add(SpanKind.RECEIVE, began, about=about)
        counters = self._fleet.counters(number)
        wasted, tokens = counters.wasted_rows, counters.settled_tokens
        if not self._fleet.settle(number, answer, now):
            self._lose_worker(number, "it answered what it was not asked", now)
        about = about._replace(tokens=counters.settled_tokens - tokens, wasted=counters.wasted_rows - wasted)
        self._recorder.add(SpanKind.SETTLE, began, about=about)

    def _send_plans(self, number: int, now: float) -> None:
        link, recorder = self._links[number], self._recorder
        began = nanoseconds()
        while link.opened is not None and (plan := self._fleet.plan(number, now)) is not None:
            planned = nanoseconds()
            if not link.send(plan, now):
                self._lose_worker(number, "it takes no more messages", now)
            sent = nanoseconds()
            about = recorder.about(plan)  # with the plan on its way there is time
            recorder.add(SpanKind.PLAN, began, planned, about)
            recorder.add(SpanKind.SEND, planned, sent, about)
            began = nanoseconds()

    def _worker_opened(self, number: int, opened: Opened, now: float) -> None:
        link, served = self._links[number], self._fleet.opened
        if served is not None and (opened.model, opened.vocab_size) != (served.model, served.vocab_size):
            link.reject(f"it holds {opened.model}, what is served is {served.model}", now)
            return
        try:
            self._fleet.worker_opened(number, opened, now)
        except CapacityError as error:
            if served is None:
                raise StartError(f"the worker at {link.address}: {error}") from None
            link.reject(str(error), now)
            return
        self._clients.attach_early(opened, now)
        if served is None:
            self._lifeline.ready()

    def _lose_worker(self, number: int, why: str, now: float, *, died: bool = False) -> None:
        link = self._links[number]
        if link.opened is not None:
            link.lose(why)
            self._fleet.worker_lost(number, now, died=died)
            link.beat(now)  # it may be there again already

    # ------------------------------------------------------------------ clients

    def _hear_clients(self, now: float) -> None:
        until = time.monotonic() + IDLE_INTAKE_SECONDS
        began = nanoseconds()
        taken = 0
        while (received := receive_from_peer(self._router)) is not None:
            try:
                self._hear_client(received, now)
            except ProtocolError as error:
                self._dropped.add(error)
            taken += 1
            if taken >= INTAKE_PER_TURN and (self._fleet.busy or time.monotonic() > until):
                break
        if taken:
            self._recorder.add(SpanKind.INTAKE, began, about=About(rows=taken))

    def _hear_client(self, received: Received, now: float) -> None:
        peer = received.peer
        message = decode(received.frame, Attach, Submit, Abort, Ping, Pong, AskTotals, ResetPrefixCache)
        if isinstance(message, Attach):
            replaced = self._clients.attach(peer, message, self._fleet.opened, now)
            if replaced is not None:
                self._fleet.drop_client(replaced, now)
            return
        client = self._clients.known(peer, now)
        if client is None:
            return
        if isinstance(message, Submit):
            self._fleet.submit(client.number, message, now)
        elif isinstance(message, Abort):
            for request in message.request.tolist():
                self._fleet.abort(client.number, request, now)
        elif isinstance(message, Ping):
            troubles = [link.trouble(now, self._step_timeout) for link in self._links]
            said = "; ".join(filter(None, troubles))
            self._clients.say(peer, Pong(self._session, 0, trouble=said, serves=not all(troubles)))
        elif isinstance(message, AskTotals):
            busy = sum(link.busy for link in self._links)
            plan_bytes = sum(link.plan_bytes for link in self._links)
            self._clients.say(peer, self._fleet.totals(busy, plan_bytes))
            for link in self._links:
                link.ask_busy()  # for the next time
        elif isinstance(message, ResetPrefixCache):
            blocks = self._fleet.reset_prefix_cache()
            self._clients.say(peer, PrefixCacheReset(self._session, message.request, blocks))

    def _deliver(self, now: float) -> None:
        began = nanoseconds()
        self._fleet.catch_up()
        gone = self._clients.retry()
        while deltas := self._fleet.take_deltas(withhold=self._clients.stalled):
            for number, message in deltas:
                if self._clients.deliver(number, message) is not None:
                    gone.append(number)
            rows = sum(len(message.request) for _, message in deltas)
            tokens = sum(len(message.token) for _, message in deltas)
            began = self._recorder.add(SpanKind.DELIVER, began, about=About(rows=rows, tokens=tokens))
        for number in self._clients.stalled:
            if self._fleet.pieces(number) > MOST_PIECES_WAITING:
                _log.warning("a client reads nothing of what it asked for: forgotten, its requests ended")
                self._clients.forget_number(number)
                gone.append(number)
        for number in gone:
            self._fleet.drop_client(number, now)

    # ------------------------------------------------------------------ time

    def _patience(self) -> int:
        """Milliseconds until something must be done even if nobody speaks."""
        wait = PULSE_SECONDS
        if self._clients.stalled:
            wait = RETRY_SECONDS
        wait = min(wait, self._fleet.next_deadline - self._clock.now)
        return max(0, int(1000 * wait) + 1)

    def _keep_house(self, now: float) -> None:
        self._timeline.turn()
        self._fleet.expire(now)
        for number, link in enumerate(self._links):
            if not link.beat(now):
                self._lose_worker(number, "nothing was heard of it", now, died=True)
        for number in self._clients.silent(now):
            self._fleet.drop_client(number, now)
        if self._fleet.opened is None:
            self._check_start(now)
        if not self._fleet.busy and now - self._collected > COLLECT_SECONDS:
            self._collected = now
            gc.collect()

    def _check_start(self, now: float) -> None:
        waited = now - self._started
        refusals = [f"{link.address}: {link.refusal}" for link in self._links if link.refusal]
        if self._config.start_timeout and waited > self._config.start_timeout:
            raise StartError("; ".join(refusals) or f"no worker was ready within {self._config.start_timeout:g} s")
