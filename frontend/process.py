"""The frontend process: one event loop with sockets, clock and signals around the core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections import deque
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import Self

import zmq

from checkpoint import locate
from checkpoint.sampling import sampling_defaults
from frontend.callers import Callers
from frontend.config import FrontendConfig, ServeConfig, TextConfig
from frontend.core import LOOK_AROUND_SECONDS, FrontendCore
from frontend.counts import Counts
from frontend.drain import Drain
from frontend.intake import Intake
from frontend.model_text import ModelText
from frontend.readers import LONG_CHARACTERS, Readers
from frontend.request_log import RequestLog
from frontend.timeline_desk import Question, TimelineDesk, TimelineUnavailableError
from frontend.turn import for_a_turn
from frontend.unread import Unread
from frontend.wake import Wake
from protocol.awake_clock import AwakeClock
from protocol.codec import decode, request_of
from protocol.drop_log import DropLog
from protocol.endpoints import clear_away, listen
from protocol.errors import ProtocolError
from protocol.lifeline import Lifeline
from protocol.listeners import inherited
from protocol.messages import (
    AskTimeline,
    Attached,
    Cancel,
    Deltas,
    Generate,
    Joined,
    Ping,
    Pong,
    PrefixCacheReset,
    SpanKind,
    StartTimeline,
    StopTimeline,
    TimelineState,
    Totals,
    Unattached,
)
from protocol.sockets import (
    LONGEST_TURN_SECONDS,
    RETRY_SECONDS,
    PeerGoneError,
    bind_router,
    connect_dealer,
    receive,
    receive_from_peer,
    send,
    send_to_peer,
)
from protocol.stop_signal import StopSignal
from timeline.link import TimelineLink, this_host
from timeline.recorder import About, nanoseconds

MOST_MESSAGES_A_TURN = 256
"""How much is read from one socket before the others have their turn."""

CLIENTS_TURN_SECONDS = 0.05
"""How long clients are listened to at a time: reading a long prompt costs a thousand times what a token does."""

FAREWELL_MILLISECONDS = 300
"""How long the last messages may take to leave when the process ends."""

_log = logging.getLogger("stepahead.frontend")


class FrontendProcess:
    """One turn: hear schedulers and clients, let time pass, speak to schedulers and clients.

    HTTP requests are tasks of the same loop and, for the core, clients like the others: they are heard in turn with
    those behind the socket, within the same time.
    """

    def __init__(
        self,
        config: FrontendConfig,
        text_config: TextConfig,
        serve: ServeConfig,
        lifeline: Lifeline,
        stop: StopSignal,
    ) -> None:
        """Bind, connect, and load what the model brings for text; progress is told to `lifeline`.

        Raises `ProtocolError`, `CheckpointError` or `TextError`, each in one line for the user.
        """
        self._serve = serve
        self._lifeline = lifeline
        self._dropped = DropLog(_log, "a frame that broke the protocol")
        self._blocked = False  # somebody's queue is full: to be tried again
        with ExitStack() as undo:
            self._listener = undo.enter_context(_http_listener(config, serve)) if serve.http else None
            tell = lifeline.progress
            path = locate(config.model, need_weights=False, revision=config.revision, tell=tell)
            undo.callback(clear_away, config.bind)
            context = undo.enter_context(zmq.Context())
            self._router = bind_router(context, config.bind, config.zmq_listener)
            undo.callback(self._router.close, FAREWELL_MILLISECONDS)
            self._dealers: list[zmq.Socket[bytes]] = []
            for address in config.scheduler:
                self._dealers.append(connect_dealer(context, address))
                undo.callback(self._dealers[-1].close, FAREWELL_MILLISECONDS)
            tell("loading the tokenizer")
            text = ModelText.load(path, text_config.chat_template)
            defaults = sampling_defaults(
                path, text_config.override_generation_config, read=text_config.generation_config == "auto", tell=tell
            )
            seeds = random.SystemRandom() if config.seed is None else random.Random(config.seed)
            self._clock = AwakeClock(longest_turn=LONGEST_TURN_SECONDS)
            me = Joined(config.name, "frontend", os.getpid(), this_host())
            self._timeline = TimelineLink(context, config.timeline, me)
            undo.callback(self._timeline.close)
            self._recorder = self._timeline.recorder
            self._desk = TimelineDesk(self._timeline)
            self._questions: set[asyncio.Task[None]] = set()  # asyncio itself does not hold on to them
            intake = Intake(text, defaults, lambda: seeds.getrandbits(64), self._recorder)
            request_log = RequestLog(lambda: self._clock.now, on=serve.log_requests)
            self._core = FrontendCore(intake, config.scheduler, self._clock.turn(), request_log, LONG_CHARACTERS)
            self._readers = Readers()
            undo.callback(self._readers.close)
            self._being_read: set[asyncio.Task[None]] = set()
            self._counts = None if config.counts is None else Counts(config.counts, config.place, config.places)
            self._wake = Wake(stop)
            self._callers = Callers(self._core, self._clock, self._wake.set)
            self._clients = deque((self._hear_socket, self._callers.do_next))  # whose turn is next comes first
            self._drain = Drain(self._core, self._callers, stop, lifeline, serve.drain_timeout)
            self._timeline.greet()
            self._undo = undo.pop_all()

    async def run(self) -> None:
        """Serve until told to stop and all is said. Text clients are heard once a scheduler is attached."""
        self._lifeline.progress("waiting for a scheduler")
        serving = False
        spans = () if self._timeline.socket is None else (self._timeline.socket,)
        with self._wake.watching((*self._dealers, *spans)):
            async with self._http():
                with contextlib.closing(self._callers):  # before HTTP ends: it waits for what they wait for
                    while not self._drain.over:
                        await self._wake.wait(RETRY_SECONDS if self._blocked else LOOK_AROUND_SECONDS)
                        now = self._clock.turn()
                        self._hear_schedulers(now)
                        if serving:
                            self._hear_clients()
                            self._have_read()
                        elif self._core.ready:
                            serving = True
                            self._wake.watch(self._router)
                            self._lifeline.ready()
                        self._core.look_around(now)
                        if self._counts is not None:
                            self._counts.keep_up(self._core.tally, self._core.counters, now)
                        self._drain.look(now)
                        self._speak_to_schedulers(now)
                        self._speak_to_clients(now)
                        self._desk.hear(self._timeline.turn())
                        self._wake.look_again()

    def _http(self) -> AbstractAsyncContextManager[None]:
        if self._listener is None:
            return contextlib.nullcontext()
        from frontend.http.app import make_app  # half a second of imports that not every frontend needs
        from frontend.http.server import serving

        app = make_app(self._core, self._callers, self._clock, self._serve, self._desk, self._counts, self._readers)
        return serving(app, self._listener)

    def _hear_schedulers(self, now: float) -> None:
        for index, dealer in enumerate(self._dealers):
            for _ in range(MOST_MESSAGES_A_TURN):
                frame = receive(dealer)
                if frame is None:
                    break
                try:
                    message = decode(frame, Attached, Unattached, Pong, Ping, Deltas, Totals, PrefixCacheReset)
                except ProtocolError as error:
                    self._dropped.add(error)
                else:
                    began = nanoseconds()
                    self._core.hear_scheduler(index, message, now)
                    if isinstance(message, Deltas):
                        about = About(rows=len(message.request), tokens=len(message.token))
                        self._recorder.add(SpanKind.DETOKENIZE, began, about=about)

    def _hear_clients(self) -> None:
        for _ in for_a_turn(MOST_MESSAGES_A_TURN, CLIENTS_TURN_SECONDS):
            if not any(hear_next() for hear_next in self._clients):
                break
            self._clients.rotate()

    def _have_read(self) -> None:
        while (unread := self._core.take_unread()) is not None:
            task = asyncio.create_task(self._read(unread))
            self._being_read.add(task)
            task.add_done_callback(self._being_read.discard)

    async def _read(self, unread: Unread) -> None:
        await self._readers.read(unread.characters, unread.read)
        self._core.has_read(unread, self._clock.now)
        self._wake.set()

    def _hear_socket(self) -> bool:
        now = self._clock.now
        received = receive_from_peer(self._router)
        if received is None:
            return False
        try:
            message = decode(received.frame, Generate, Cancel, Ping, Pong, StartTimeline, StopTimeline, AskTimeline)
        except ProtocolError as error:
            request = request_of(received.frame)
            if request is None:
                self._dropped.add(error)
            else:
                self._core.refuse(received.peer, request, error, now)
        else:
            self._core.hear_client(received.peer, message, now)
            if isinstance(message, StartTimeline | StopTimeline | AskTimeline):
                task = asyncio.create_task(self._ask_timeline(received.peer, message))
                self._questions.add(task)
                task.add_done_callback(self._questions.discard)
        return True

    async def _ask_timeline(self, peer: bytes, question: Question) -> None:
        try:
            state = await self._desk.ask(question)
        except TimelineUnavailableError as error:
            state = TimelineState(question.request, False, "", 0.0, 0, 0, refusal=str(error), problem="")
        self._core.answer(peer, state, self._clock.now)
        self._wake.set()

    def _speak_to_schedulers(self, now: float) -> None:
        for link, dealer in zip(self._core.links, self._dealers, strict=True):
            while (message := link.peek()) is not None and send(dealer, message):
                link.sent(now)
            self._wake.want_room(dealer, link.peek() is not None)

    def _speak_to_clients(self, now: float) -> None:
        self._blocked = False
        began = nanoseconds()
        told = len(self._core.speak_to)
        for identity in list(self._core.speak_to):
            if self._callers.tell(identity):
                del self._core.speak_to[identity]
                continue
            peer = self._core.peers[identity]
            try:
                while (message := peer.peek()) is not None and send_to_peer(self._router, identity, message):
                    peer.sent(message, now)
            except PeerGoneError:
                self._core.client_gone(identity)
                continue
            if message is None:
                del self._core.speak_to[identity]
            else:
                self._blocked = True
        if told:
            self._recorder.add(SpanKind.SEND, began, about=About(rows=told))

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sockets; the last messages get a moment to leave."""
        self._undo.close()


def _http_listener(config: FrontendConfig, serve: ServeConfig) -> socket.socket:
    return listen(serve.host, serve.port) if config.http_listener is None else inherited(config.http_listener)
