"""When the scheduler says that something is wrong with a worker. Time is an argument; the socket is a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from protocol.codec import decode
from protocol.messages import Message, Open, Opened, Ping, Pong
from protocol.sockets import LATE_SECONDS, PULSE_SECONDS, bind_router, receive_from_peer, send_to_peer
from scheduler_proc.worker_link import WorkerLink

SESSION = 7
NO_SLOW_STEP = 1e9


class Pair:
    """A link, its session open at time 0, and the worker that it leads to."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = bind_router(self.context, address)
        self.link = WorkerLink(self.context, address, credit=2)
        self.peer = b""
        self.open(SESSION, 0.0)

    def open(self, session: int, now: float) -> None:
        """Begin a session; none may be open."""
        self.link.beat(now)
        opening = self.hear()
        assert isinstance(opening, Open)
        facts = (100, np.zeros(0, "<u4"), 4, 16, 16, 64, 64)
        self.answer(Opened(opening.nonce, session, "model", "cpu", "float32", *facts), now)

    def hear(self) -> Message:
        """What the worker hears next."""
        assert self.router.poll(10_000)
        received = receive_from_peer(self.router)
        assert received is not None
        self.peer = received.peer
        return decode(received.frame)

    def answer(self, message: Message, now: float) -> None:
        """Let the worker say something, and the link hear it."""
        assert send_to_peer(self.router, self.peer, message)
        assert self.link.socket.poll(10_000)
        heard = self.link.receive(now)
        assert type(heard) is type(message)

    def trouble(self, now: float) -> str:
        return self.link.trouble(now, NO_SLOW_STEP)

    def close(self) -> None:
        self.link.close()
        self.router.close()
        self.context.term()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(f"ipc://{tmp_path / 'worker'}")
    yield pair
    pair.close()


def test_a_worker_that_was_not_asked_is_not_late(pair: Pair) -> None:
    assert pair.trouble(3 * LATE_SECONDS) == ""


def test_a_worker_is_late_from_the_first_question_that_it_leaves_unanswered_until_it_speaks(pair: Pair) -> None:
    asked = 5.0
    assert pair.link.beat(asked)
    assert pair.hear() == Ping()
    assert pair.trouble(asked + LATE_SECONDS) == ""
    assert pair.link.beat(asked + PULSE_SECONDS)
    assert "is silent" in pair.trouble(asked + LATE_SECONDS + 0.01)
    pair.answer(Pong(SESSION, 0), asked + LATE_SECONDS + 0.02)
    assert pair.trouble(asked + 3 * LATE_SECONDS) == ""
