"""The scheduler process: sockets and a clock around the core."""

from __future__ import annotations

import gc
import logging
import time
from math import inf

import zmq

from protocol.codec import decode
from protocol.errors import ProtocolError
from protocol.identity import new_session
from protocol.lifeline import Lifeline
from protocol.messages import Abort, Attach, Failed, Opened, Ping, Pong, Result, Submit
from protocol.sockets import HEARTBEAT_SECONDS, Received, bind_router, receive_from_peer
from protocol.stop_signal import StopSignal
from scheduler_proc.capacity import CapacityError
from scheduler_proc.clients import Clients
from scheduler_proc.config import SchedulerConfig
from scheduler_proc.fleet import Fleet
from scheduler_proc.worker_link import WorkerLink

INTAKE_PER_TURN = 64
"""Client messages taken in one turn while workers compute: intake must not hold up the next plan."""

RETRY_SECONDS = 0.02
"""How soon a client that could not be sent to is tried again; ZeroMQ has no event for one peer of a ROUTER."""

_log = logging.getLogger("stepahead.scheduler")


class StartError(Exception):
    """The scheduler can't begin to serve; the text is for the user."""


class SchedulerProcess:
    """One turn: answers first (receive, settle, plan, send), then everything that can wait in the GPU's shadow."""

    def __init__(self, config: SchedulerConfig, credit: int, lifeline: Lifeline, stop: StopSignal) -> None:
        """Bind for clients and connect to the workers. Raises `ProtocolError` for an address that can't be had."""
        self._config = config
        self._lifeline = lifeline
        self._stop = stop
        self._session = new_session()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = bind_router(self._context, config.bind)
        self._links = [WorkerLink(self._context, address, credit) for address in config.worker]
        self._fleet = Fleet(credit, self._session)
        self._clients = Clients(self._router, self._session)
        self._garbage = 0
        self._started = time.monotonic()
        self._poller = zmq.Poller()
        for waited_for in (stop, self._router, *[link.socket for link in self._links]):
            self._poller.register(waited_for, zmq.POLLIN)

    def run(self) -> None:
        """Serve until told to stop. Raises `StartError` if no worker can be had in time."""
        gc.disable()  # a full collection over many waiting requests takes longer than a step
        self._keep_house()  # the first word to the workers
        while not self._stop.is_set:
            self._poller.poll(self._patience())
            for number in range(len(self._links)):
                self._hear_worker(number)
            self._hear_clients()
            for number in range(len(self._links)):
                self._send_plans(number, time.monotonic())
            self._deliver()
            self._keep_house()

    def close(self) -> None:
        """Let workers go, close all sockets."""
        for link in self._links:
            link.close()
        self._router.close()
        self._context.term()

    # ------------------------------------------------------------------ workers

    def _hear_worker(self, number: int) -> None:
        link = self._links[number]
        try:
            while (message := link.receive(now := time.monotonic())) is not None:
                if isinstance(message, Result | Failed):
                    if not self._fleet.settle(number, message, now):
                        self._lose_worker(number, "it answered what it was not asked")
                    self._send_plans(number, now)
                elif isinstance(message, Opened):
                    self._worker_opened(number, message, now)
                elif isinstance(message, Pong) and link.opened and message.session != link.opened.session:
                    self._lose_worker(number, "it was restarted")
        except ProtocolError as error:
            self._lose_worker(number, str(error))

    def _send_plans(self, number: int, now: float) -> None:
        link = self._links[number]
        while link.opened is not None and (plan := self._fleet.plan(number, now)) is not None:
            link.send(plan, now)

    def _worker_opened(self, number: int, opened: Opened, now: float) -> None:
        served = self._fleet.opened
        if served is not None and (opened.model, opened.vocab_size) != (served.model, served.vocab_size):
            self._links[number].reject(f"it holds {opened.model}, what is served is {served.model}", now)
            return
        try:
            self._fleet.worker_opened(number, opened, now)
        except CapacityError as error:
            raise StartError(f"the worker at {self._links[number].address}: {error}") from None
        self._clients.attach_early(opened, now)
        self._lifeline.ready()
        gc.collect()
        gc.freeze()

    def _lose_worker(self, number: int, why: str) -> None:
        link = self._links[number]
        if link.opened is not None:
            now = time.monotonic()
            link.lose(why)
            self._fleet.worker_lost(number, now)
            link.beat(now)  # it may be there again already

    # ------------------------------------------------------------------ clients

    def _hear_clients(self) -> None:
        # An idle system takes in all that has come before it plans: what arrived together starts together.
        budget = INTAKE_PER_TURN if self._fleet.busy else inf
        while budget > 0 and (received := receive_from_peer(self._router)) is not None:
            budget -= 1
            try:
                self._hear_client(received, time.monotonic())
            except ProtocolError as error:
                self._garbage += 1
                if self._garbage.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …
                    _log.warning("dropped a client's message, %d so far: %s", self._garbage, error)

    def _hear_client(self, received: Received, now: float) -> None:
        peer = received.peer
        message = decode(received.frame, Attach, Submit, Abort, Ping, Pong)
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
            self._clients.say(peer, Pong(self._session, 0))

    def _deliver(self) -> None:
        gone = self._clients.retry()
        for number, deltas in self._fleet.take_deltas(withhold=self._clients.stalled):
            if self._clients.deliver(number, deltas) is not None:
                gone.append(number)
        for number in gone:
            self._fleet.drop_client(number, time.monotonic())

    # ------------------------------------------------------------------ time

    def _patience(self) -> int:
        """Milliseconds until something must be done even if nobody speaks."""
        wait = HEARTBEAT_SECONDS
        if self._clients.stalled:
            wait = RETRY_SECONDS
        wait = min(wait, self._fleet.next_deadline - time.monotonic())
        return max(0, int(1000 * wait) + 1)

    def _keep_house(self) -> None:
        now = time.monotonic()
        self._fleet.expire(now)
        for number, link in enumerate(self._links):
            if not link.beat(now):
                self._lose_worker(number, "nothing was heard of it")
        for number in self._clients.silent(now):
            self._fleet.drop_client(number, now)
        if self._fleet.opened is None:
            self._check_start(now)

    def _check_start(self, now: float) -> None:
        waited = now - self._started
        refusals = [f"{link.address}: {link.refusal}" for link in self._links if link.refusal]
        if self._config.start_timeout and waited > self._config.start_timeout:
            raise StartError("; ".join(refusals) or f"no worker was ready within {self._config.start_timeout:g} s")
