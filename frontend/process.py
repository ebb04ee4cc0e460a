"""The frontend process: sockets, clock and signals around the core."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq

from checkpoint import CheckpointError, locate
from frontend.awake_clock import AwakeClock
from frontend.core import FrontendCore
from frontend.intake import Intake
from frontend.model_text import ModelText
from frontend.text_error import TextError
from protocol import lifeline
from protocol.codec import decode, request_of
from protocol.endpoints import DEFAULT_ADDRESS
from protocol.errors import ProtocolError
from protocol.messages import Attached, Cancel, Deltas, Generate, Ping, Pong, Unattached
from protocol.sockets import (
    HEARTBEAT_SECONDS,
    PeerGoneError,
    bind_router,
    connect_dealer,
    receive,
    receive_from_peer,
    send,
    send_to_peer,
)

MOST_MESSAGES_A_TURN = 256
"""How much is read from one socket before the others have their turn."""

RETRY_SECONDS = 0.02
"""How soon a peer whose queue was full is tried again; no socket tells when a single peer has room."""

FAREWELL_MILLISECONDS = 300
"""How long the last messages may take to leave when the process ends."""

_log = logging.getLogger("stepahead.frontend")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    bind: str
    schedulers: tuple[str, ...]
    model: str | None
    lifeline: str | None


class FrontendProcess:
    """The poll loop: hear schedulers and clients, let time pass, speak to schedulers and clients."""

    def __init__(self, options: Options, tell: Callable[[str], None]) -> None:
        """Bind, connect, and load what the model brings for text; `tell` takes lines of progress.

        Raises `ProtocolError`, `CheckpointError` or `TextError`, each in one line for the user.
        """
        self._stopping = False
        self._garbage = 0
        self._blocked = False
        with ExitStack() as undo:
            self._wakeup = _SignalWakeup(self._stop)
            undo.callback(self._wakeup.close)
            path = locate(options.model, need_weights=False)
            context = undo.enter_context(zmq.Context())
            self._router = bind_router(context, options.bind)
            undo.callback(self._router.close, FAREWELL_MILLISECONDS)
            self._dealers: list[zmq.Socket[bytes]] = []
            for address in options.schedulers:
                self._dealers.append(connect_dealer(context, address))
                undo.callback(self._dealers[-1].close, FAREWELL_MILLISECONDS)
            tell("loading the tokenizer")
            text = ModelText.load(path)
            self._clock = AwakeClock(longest_turn=2 * HEARTBEAT_SECONDS)
            self._core = FrontendCore(Intake(text), options.schedulers, self._clock.turn())
            self._poller = zmq.Poller()
            self._poller.register(self._wakeup.fileno(), zmq.POLLIN)
            for dealer in self._dealers:
                self._poller.register(dealer, zmq.POLLIN)
            self._undo = undo.pop_all()

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal says stop. Calls `ready` once a scheduler is attached; clients are heard from then."""
        serving = False
        while not self._stopping:
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
                    self._drop(error)
                else:
                    self._core.hear_scheduler(index, message, now)

    def _hear_clients(self, now: float) -> None:
        for _ in range(MOST_MESSAGES_A_TURN):
            received = receive_from_peer(self._router)
            if received is None:
                break
            try:
                message = decode(received.frame, Generate, Cancel, Ping, Pong)
            except ProtocolError as error:
                request = request_of(received.frame)
                if request is None:
                    self._drop(error)
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

    def _drop(self, error: ProtocolError) -> None:
        self._garbage += 1
        if self._garbage & (self._garbage - 1) == 0:  # the 1st, 2nd, 4th, 8th …: a flood fills no log
            _log.warning("frame no. %d that broke the protocol was dropped: %.300s", self._garbage, error)

    def _stop(self) -> None:
        self._stopping = True

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sockets; the last messages get a moment to leave."""
        self._undo.close()


class _SignalWakeup:
    """SIGTERM, and Ctrl-C where no parent decides about it: a call of `stop`, and a descriptor that ends a poll."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: stop())

    def fileno(self) -> int:
        return self._read.fileno()

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options in `arguments`, those of the process if None; a mistake ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="python -m frontend", description="Text in front of token schedulers.")
    parser.add_argument("--bind", metavar="ADDR", default=DEFAULT_ADDRESS, help="where text clients come (%(default)s)")
    parser.add_argument(
        "--scheduler",
        metavar="ADDR",
        dest="schedulers",
        action="append",
        required=True,
        help="a scheduler to use; give it again for each further one",
    )
    parser.add_argument(
        "--model", metavar="PATH", default="default", help="a model's folder or GGUF file, or `default` (%(default)s)"
    )
    parser.add_argument(lifeline.FLAG, dest="lifeline", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    model = None if given.model == "default" else given.model
    return Options(given.bind, tuple(given.schedulers), model, given.lifeline)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; return its exit code: 0 after a signal, 2 for a mistake of the user."""
    logging.basicConfig(format="frontend: %(message)s", level=logging.INFO)
    options = parse(arguments)
    parent = lifeline.Lifeline(options.lifeline)
    try:
        with FrontendProcess(options, parent.progress) as process:
            parent.progress("waiting for a scheduler")
            process.run(parent.ready)
    except (ProtocolError, CheckpointError, TextError) as error:
        print(f"frontend: {error}", file=sys.stderr)
        parent.failed(str(error))
        return 2
    return 0
