"""The worker process: a socket around the step pipeline."""

from __future__ import annotations

import gc
import logging
import time
from math import ceil

import zmq

from gpu_worker.engine import Engine
from gpu_worker.session import Session
from gpu_worker.timer_slack import sleep_precisely
from protocol.awake_clock import AwakeClock
from protocol.codec import decode
from protocol.drop_log import DropLog
from protocol.errors import ProtocolError
from protocol.identity import new_session
from protocol.messages import Close, Message, Open, Ping, Plan, Pong, Refused, SpanKind
from protocol.sockets import (
    HEARTBEAT_SECONDS,
    SILENCE_SECONDS,
    PeerGoneError,
    Received,
    receive_from_peer,
    send_to_peer,
)
from protocol.stop_signal import StopSignal
from timeline.link import TimelineLink
from timeline.recorder import About, nanoseconds

EVENT_POLL_SECONDS = 20e-6
"""How often events are asked while something is in flight, on a device that can't wake the poll."""

CLOCK_SECONDS = 1.0
"""How often a device's clock is compared with the host's while the timeline records."""

COLLECT_SECONDS = 10.0
"""How often garbage is collected while nothing is in flight."""

INTAKE_PER_TURN = 64
"""Messages taken before finished batches are looked after: a flood must not hold up answers."""

_log = logging.getLogger("stepahead.worker")


class WorkerProcess:
    """One turn: wait for a message or a finished batch, whichever comes first; launch plans, send answers."""

    def __init__(self, engine: Engine, router: zmq.Socket[bytes], stop: StopSignal, timeline: TimelineLink) -> None:
        """Serve `engine` on a bound ROUTER."""
        self._timeline = timeline
        self._recorder = timeline.recorder
        self._engine = engine
        self._router = router
        self._stop = stop
        self._life = new_session()  # what a peer that has no session is told: a restart shows
        self._session: Session | None = None
        self._next: tuple[bytes, Open] | None = None  # waits until the old session's batches are done
        self._dropped = DropLog(_log, "a message")
        self._stale = DropLog(_log, "a message of a session that is over")
        self._set_clock_at = 0.0
        self._collected = 0.0
        self._clock = AwakeClock(longest_turn=2 * HEARTBEAT_SECONDS)
        self._poller = zmq.Poller()
        self._poller.register(router, zmq.POLLIN)
        self._poller.register(stop, zmq.POLLIN)
        self._wakeup = engine.device.fileno()
        if self._wakeup is None:
            sleep_precisely()
        if timeline.socket is not None:
            self._poller.register(timeline.socket, zmq.POLLIN)
        if self._wakeup is not None:
            self._poller.register(self._wakeup, zmq.POLLIN)

    def run(self) -> None:
        """Serve until told to stop."""
        # A collection in the middle of a step could make the GPU wait: none comes by itself, and what the start has
        # left behind is never looked at again.
        gc.disable()
        gc.collect()
        gc.freeze()
        while not self._stop.is_set:
            self._wait()
            now = self._clock.turn()
            for _ in range(INTAKE_PER_TURN):
                began = nanoseconds()
                received = receive_from_peer(self._router)
                if received is None:
                    break
                self._hear(received, now, began)
            self._answer()
            self._hand_over(now)
            self._tell_timeline(now)
            if not self._in_flight and now - self._collected > COLLECT_SECONDS:
                self._collected = now
                gc.collect()

    @property
    def _in_flight(self) -> bool:
        return self._session is not None and len(self._session.pipeline) > 0

    def _wait(self) -> None:
        """Block until a message, a finished batch or a second has come, or what is recorded is to be told."""
        session, in_flight = self._session, self._in_flight
        began = nanoseconds()
        patience = ceil(1000 * self._timeline.patience)
        if self._wakeup is not None:
            if any(waited_for == self._wakeup for waited_for, _ in self._poller.poll(patience)):
                self._engine.device.clear_wakeups()
        elif session is None or not in_flight:
            self._poller.poll(patience)
        else:
            last = began + 1_000_000 * patience
            while not self._poller.poll(0) and not session.pipeline.ready() and nanoseconds() < last:
                time.sleep(EVENT_POLL_SECONDS)
        self._recorder.add(SpanKind.WAIT if in_flight else SpanKind.IDLE, began)

    def _hear(self, received: Received, now: float, began: int) -> None:
        """Do as a message says that has been received since `began`, by the timeline's clock."""
        peer, session = received.peer, self._session
        mine = session if session is not None and session.peer == peer and not session.over else None
        if mine is not None:
            mine.heard = now
        try:
            message = decode(received.frame, Open, Plan, Close, Ping, Pong)
            if isinstance(message, Open):
                self._claim(peer, message)
            elif isinstance(message, Ping):
                busy = 0.0 if session is None else session.pipeline.busy_seconds
                number, answered = (self._life, 0) if mine is None else (mine.number, mine.answered)
                self._say(peer, Pong(number, answered, busy=busy))
            elif isinstance(message, Plan | Close):
                if mine is None or message.session != mine.number:
                    self._stale.add(f"session {message.session}")
                elif isinstance(message, Plan):
                    self._recorder.add(SpanKind.RECEIVE, began, about=self._recorder.about(message))
                    mine.launch(message, self._engine)
                else:
                    mine.over = True
        except ProtocolError as error:
            self._dropped.add(error)
            if mine is not None:
                # Its scheduler waits for an answer that can't be given; it sees by its next Ping that it must begin
                # again.
                self._end(mine, str(error))

    def _claim(self, peer: bytes, claim: Open) -> None:
        """Let a scheduler have the worker, unless another one has it."""
        session = self._session
        if session is not None and not session.over:
            if session.peer != peer:
                self._say(peer, Refused(claim.nonce, "the worker has another scheduler"))
                return
            self._end(session, "its scheduler opened another")
        self._next = (peer, claim)

    def _answer(self) -> None:
        session = self._session
        while session is not None and session.pipeline.ready():
            began = nanoseconds()
            answer = session.collect()
            if not session.over:
                self._say(session.peer, answer)
            self._recorder.add(SpanKind.REPLY, began, about=About.of(session.number, answer.step))

    def _tell_timeline(self, now: float) -> None:
        """Speak with the timeline's collector; while it records, compare the clocks of device and host now and then."""
        self._timeline.turn()
        if self._recorder.on and now >= self._set_clock_at:  # before anything is dated, when it has just begun
            self._set_clock_at = now + CLOCK_SECONDS
            self._engine.device.set_clock()
            self._timeline.clock_error = self._engine.device.clock_error

    def _hand_over(self, now: float) -> None:
        """End a silent scheduler's session; begin the next one as soon as the last one's batches are done."""
        session = self._session
        if session is not None and not session.over and now - session.heard > SILENCE_SECONDS:
            self._end(session, "nothing was heard of its scheduler")
        if session is not None and session.over and not len(session.pipeline):
            session = self._session = None
        if session is None and self._next is not None:
            (peer, claim), self._next = self._next, None
            engine = self._engine
            self._session = Session(peer, new_session(), engine.pipeline(claim.plans_in_flight, self._recorder), now)
            self._say(peer, engine.opened(claim.nonce, self._session.number))

    def _end(self, session: Session, why: str) -> None:
        _log.info("a session is over: %s", why)
        session.over = True

    def _say(self, peer: bytes, message: Message) -> None:
        try:
            if send_to_peer(self._router, peer, message):
                return
            why = "its scheduler does not read what it is sent"
        except PeerGoneError:
            why = "its scheduler is gone"
        session = self._session
        if session is not None and session.peer == peer and not session.over:
            self._end(session, why)  # an answer is lost: what is left of the session would wait for it
