"""The scheduler's clients: who is attached, and that what could not be sent is neither lost nor reordered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import scheduler_proc.clients
from protocol.messages import Attach, Attached, Deltas, Message, Unattached
from protocol.sockets import SILENCE_SECONDS, PeerGoneError
from scheduler_proc.clients import Clients
from tests.stub_model import opened

SESSION = 5


class Router:
    """Stands in for the socket: peers may be full or gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.sent: list[tuple[bytes, Message]] = []
        monkeypatch.setattr(scheduler_proc.clients, "send_to_peer", self.send)

    def send(self, router: Any, peer: bytes, message: Message) -> bool:
        if peer in self.gone:
            raise PeerGoneError
        if peer not in self.full:
            self.sent.append((peer, message))
        return peer not in self.full

    def to(self, peer: bytes) -> list[Message]:
        return [message for receiver, message in self.sent if receiver == peer]


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Router:
    return Router(monkeypatch)


@pytest.fixture
def clients(router: Router) -> Clients:
    return Clients(router, SESSION)  # type: ignore[arg-type]


def deltas(request: int) -> Deltas:
    return Deltas(
        session=SESSION,
        request=np.array([request], np.uint64),
        offset=np.zeros(1, np.uint32),
        count=np.zeros(1, np.uint32),
        finish=np.zeros(1, np.uint8),
        cached=np.zeros(1, np.uint32),
        token=np.zeros(0, np.uint32),
        timing=np.zeros(0, np.float32),
        errors=(),
    )


def attached(clients: Clients, peer: bytes, incarnation: int = 9) -> int:
    clients.attach(peer, Attach(incarnation), opened(), 0.0)
    client = clients.known(peer, 0.0)
    assert client is not None
    return client.number


def test_what_several_workers_say_to_a_slow_client_comes_whole_and_in_order(clients: Clients, router: Router) -> None:
    number = attached(clients, b"a")
    router.full.add(b"a")
    for request in (1, 2, 3):
        assert clients.deliver(number, deltas(request)) is None
    assert clients.stalled == {number}
    assert clients.retry() == []
    router.full.clear()
    assert clients.deliver(number, deltas(4)) is None
    assert [message.request.tolist() for message in router.to(b"a")[1:]] == [[1], [2], [3], [4]]  # type: ignore[union-attr]
    assert clients.stalled == set()


def test_a_slow_client_that_goes_is_named_once(clients: Clients, router: Router) -> None:
    number = attached(clients, b"a")
    router.full.add(b"a")
    clients.deliver(number, deltas(1))
    router.gone.add(b"a")
    assert clients.retry() == [number]
    assert clients.retry() == []
    assert clients.deliver(number, deltas(2)) is None
    assert clients.stalled == set()


def test_clients_that_came_before_the_worker_are_attached_with_it_even_if_some_have_left(
    clients: Clients, router: Router
) -> None:
    for peer in (b"a", b"b", b"c"):
        assert clients.attach(peer, Attach(9), None, 0.0) is None
    assert clients.known(b"a", 0.0) is None
    assert router.sent == []
    router.gone.add(b"b")
    clients.attach_early(opened(), 1.0)
    assert [type(message) for _, message in router.sent] == [Attached, Attached]
    assert clients.known(b"a", 1.0) is not None
    assert set(clients.silent(1.0 + SILENCE_SECONDS + 0.1)) == {1, 2, 3}
    assert clients.known(b"a", 99.0) is None
    assert isinstance(router.to(b"a")[-1], Unattached), "one that was forgotten is a stranger again"


def test_another_incarnation_replaces_the_one_before_and_the_same_one_does_not(clients: Clients) -> None:
    number = attached(clients, b"a", 9)
    assert clients.attach(b"a", Attach(9), opened(), 0.0) is None
    assert clients.attach(b"a", Attach(10), replace(opened(), max_model_len=7), 0.0) == number
    client = clients.known(b"a", 0.0)
    assert client is not None
    assert client.number != number


def test_a_stranger_is_told_to_attach(clients: Clients, router: Router) -> None:
    assert clients.known(b"x", 0.0) is None
    assert router.to(b"x") == [Unattached(SESSION)]


def test_only_the_silent_are_forgotten(clients: Clients) -> None:
    old, new = attached(clients, b"a"), attached(clients, b"b")
    clients.known(b"b", SILENCE_SECONDS)
    assert clients.silent(SILENCE_SECONDS + 1.0) == [old]
    assert clients.silent(2 * SILENCE_SECONDS + 1.0) == [new]
