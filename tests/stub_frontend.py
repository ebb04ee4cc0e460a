"""A frontend for tests of the client: a real ROUTER on a thread whose answers a test chooses."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import numpy as np
import zmq

from protocol.codec import decode
from protocol.identity import new_session
from protocol.messages import Cancel, Chunk, Finish, Generate, Message, Ping, Pong
from protocol.sockets import PeerGoneError, bind_router, receive_from_peer, send_to_peer

Answer = Callable[[Generate], Iterable[Chunk]]


def chunk(
    request: int,
    text: str = "",
    tokens: Iterable[int] = (),
    finish: Finish = Finish.RUNNING,
    error: str = "",
) -> Chunk:
    """Return one chunk; the counts are those of its own tokens."""
    ids = np.array(list(tokens), "<u4")
    return Chunk(request, text, ids, finish, error, 3, len(ids), cached_tokens=2)


def echo(ask: Generate) -> list[Chunk]:
    """Answer with the prompt, in one piece per character if streamed."""
    text = ask.prompt or ""
    pieces = [chunk(ask.request, char, [ord(char)]) for char in text] if ask.stream else []
    last = chunk(ask.request, "" if ask.stream else text, () if ask.stream else map(ord, text), Finish.LENGTH)
    return [*pieces, last]


class StubFrontend:
    """Answers each `Generate` by `answer`; `heard` has what came, except for signs of life.

    With `hold` above 1 so many requests are gathered first and answered in reverse order.
    """

    def __init__(self, address: str, answer: Answer = echo, *, hold: int = 1) -> None:
        self.address = address
        self.session = new_session()
        self.heard: queue.Queue[Message] = queue.Queue()
        self.silent = threading.Event()
        self.pings = 0
        self._answer = answer
        self._hold = hold
        self._held: list[tuple[bytes, Generate]] = []
        self._closing = threading.Event()
        self._context = zmq.Context()
        self._router = bind_router(self._context, address)
        self._thread = threading.Thread(target=self._serve, name="stub frontend")
        self._thread.start()

    def take(self, wanted: type[Message], seconds: float = 20.0) -> Message:
        """Return the next message of a type that came, dropping others."""
        while True:
            message = self.heard.get(timeout=seconds)
            if isinstance(message, wanted):
                return message

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._router.poll(20)
            while (received := receive_from_peer(self._router)) is not None:
                message = decode(received.frame, Generate, Cancel, Ping, Pong)
                if self.silent.is_set():
                    continue
                self._hear(received.peer, message)

    def _hear(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Ping):
            self.pings += 1
            self._send(peer, Pong(self.session, 0))
            return
        self.heard.put(message)
        if isinstance(message, Generate):
            self._held.append((peer, message))
            if len(self._held) >= self._hold:
                for whose, ask in reversed(self._held):
                    for piece in self._answer(ask):
                        self._send(whose, piece)
                self._held.clear()

    def _send(self, peer: bytes, message: Message) -> None:
        try:
            while not send_to_peer(self._router, peer, message):
                self._closing.wait(0.001)
        except PeerGoneError:
            pass

    def close(self) -> None:
        """Stop, and let go of the address."""
        self._closing.set()
        self._thread.join(10)
        self._router.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
