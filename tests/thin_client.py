"""A client that has token ids and talks to a scheduler directly."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import zmq

from protocol.codec import decode
from protocol.identity import new_session
from protocol.messages import Abort, Attach, Attached, Deltas, Finish, Message, Ping, Submit
from protocol.sockets import connect_dealer, receive, send
from tests.core_loop import Received

_Kind = TypeVar("_Kind")

PATIENCE_SECONDS = 20.0


class ThinClient:
    """Attached to one scheduler; `received` has what it was told of each request."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = connect_dealer(self.context, address)
        self.incarnation = new_session()
        self.received: dict[int, Received] = {}
        self.others: list[Message] = []
        self.say(Attach(self.incarnation))
        self.attached = self.expect(Attached)

    def say(self, message: Message) -> None:
        assert send(self.socket, message)

    def submit(self, *asks: Submit) -> None:
        for ask in asks:
            self.received[ask.request] = Received(ask.output.tolist())
            self.say(ask)

    def abort(self, *requests: int) -> None:
        self.say(Abort(np.array(requests, np.uint64)))

    def expect(self, kind: type[_Kind]) -> _Kind:
        """The next message of a kind; Deltas on the way are taken in."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            message = self.hear(0.5)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def hear(self, seconds: float) -> Message | None:
        if not self.socket.poll(int(1000 * seconds)):
            self.say(Ping())
            return None
        frame = receive(self.socket)
        assert frame is not None
        message = decode(frame)
        if isinstance(message, Deltas):
            self._take(message)
        return message

    def finish(self, *requests: int) -> None:
        """Hear deltas until these requests have ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(self.received[request].finish is Finish.RUNNING for request in requests):
            assert time.monotonic() < deadline, f"requests never ended: {self.received}"
            self.hear(0.5)

    def _take(self, deltas: Deltas) -> None:
        taken = 0
        columns = (deltas.request, deltas.offset, deltas.count, deltas.finish, deltas.cached)
        for request, offset, count, finish, cached in zip(*(column.tolist() for column in columns), strict=True):
            known = self.received[request]
            assert offset == len(known.tokens), f"request {request}: a gap or a duplicate"
            assert known.finish is Finish.RUNNING
            known.tokens += deltas.token[taken : taken + count].tolist()
            known.finish = Finish(finish)
            known.cached = cached
            taken += count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        self.context.term()
