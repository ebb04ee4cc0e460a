"""The frontend process: sockets, clock and signals around the core."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import zmq

from checkpoint import locate
from checkpoint.sampling import sampling_defaults
from frontend.config import FrontendConfig, TextConfig
from frontend.core import FrontendCore
from frontend.intake import Intake
from frontend.model_text import ModelText
from frontend.turn import for_a_turn
from protocol.awake_clock import AwakeClock
from protocol.codec import decode, request_of
from protocol.drop_log import DropLog
from protocol.errors import ProtocolError
from protocol.messages import Attached, Cancel, Deltas, Generate, Ping, Pong, Unattached
from protocol.sockets import (
    HEARTBEAT_SECONDS,
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

MOST_MESSAGES_A_TURN = 256
"""How much is read from one socket before the others have their turn."""

CLIENTS_TURN_SECONDS = 0.05
"""How long clients are listened to at a time: reading a long prompt costs a thousand times what a token does."""

FAREWELL_MILLISECONDS = 300
"""How long the last messages may take to leave when the process ends."""

_log = logging.getLogger("stepahead.frontend")


class FrontendProcess:
    """The poll loop: hear schedulers and clients, let time pass, speak to schedulers and clients."""

    def __init__(
        self, config: FrontendConfig, text_config: TextConfig, stop: StopSignal, tell: Callable[[str], None]
    ) -> None:
        """Bind, connect, and load what the model brings for text; `tell` takes lines of progress.

        Raises `ProtocolError`, `CheckpointError` or `TextError`, each in one line for the user.
        """
        self._stop = stop
        self._dropped = DropLog(_log, "a frame that broke the protocol")
        self._blocked = False
        with ExitStack() as undo:
            path = locate(config.model, need_weights=False, revision=config.revision, tell=tell)
            context = undo.enter_context(zmq.Context())
            self._router = bind_router(context, config.bind)
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
            intake = Intake(text, defaults, lambda: seeds.getrandbits(64))
            self._clock = AwakeClock(longest_turn=2 * HEARTBEAT_SECONDS)
            self._core = FrontendCore(intake, config.scheduler, self._clock.turn())
            self._poller = zmq.Poller()
            self._poller.register(stop, zmq.POLLIN)
            for dealer in self._dealers:
                self._poller.register(dealer, zmq.POLLIN)
            self._undo = undo.pop_all()

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal says stop. Calls `ready` once a scheduler is attached; clients are heard from then."""
        serving = False
        while not self._stop.is_set:
            self._poller.poll(int(1000 * (RETRY_SECONDS if self._blocked else HEARTBEAT_SECONDS)))
            now = self._clock.turn()
            self._hear_schedulers(now)
            if serving:
                self._hear_clients(now)
            elif self._core.ready:
                serving = True
                self._poller.register(self._router, zmq.POLLIN)
                ready()
            self._core.look_around(now)
            self._speak_to_schedulers(now)
            self._speak_to_clients(now)
        self._core.stop()
        self._speak_to_schedulers(now=self._clock.turn())
        self._speak_to_clients(now=self._clock.turn())

    def _hear_schedulers(self, now: float) -> None:
        for index, dealer in enumerate(self._dealers):
            for _ in range(MOST_MESSAGES_A_TURN):
                frame = receive(dealer)
                if frame is None:
                    break
                try:
                    message = decode(frame, Attached, Unattached, Pong, Ping, Deltas)
                except ProtocolError as error:
                    self._dropped.add(error)
                else:
                    self._core.hear_scheduler(index, message, now)

    def _hear_clients(self, now: float) -> None:
        for _ in for_a_turn(MOST_MESSAGES_A_TURN, CLIENTS_TURN_SECONDS):
            received = receive_from_peer(self._router)
            if received is None:
                break
            try:
                message = decode(received.frame, Generate, Cancel, Ping, Pong)
            except ProtocolError as error:
                request = request_of(received.frame)
                if request is None:
                    self._dropped.add(error)
                else:
                    self._core.refuse(received.peer, request, str(error), now)
            else:
                self._core.hear_client(received.peer, message, now)

    def _speak_to_schedulers(self, now: float) -> None:
        for link, dealer in zip(self._core.links, self._dealers, strict=True):
            while (message := link.peek()) is not None and send(dealer, message):
                link.sent(now)
            self._poller.modify(dealer, zmq.POLLIN | (zmq.POLLOUT if link.peek() is not None else 0))

    def _speak_to_clients(self, now: float) -> None:
        self._blocked = False
        for identity in list(self._core.speak_to):
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

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sockets; the last messages get a moment to leave."""
        self._undo.close()
