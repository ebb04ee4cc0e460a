"""Several processes serve one address, and nobody else can have it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from protocol.endpoints import listen
from protocol.errors import ProtocolError
from protocol.listeners import tcp_listeners, zmq_listeners
from protocol.sockets import bind_router
from tests.http_server import free_port

MANY = 200


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_connections_are_dealt_out_among_those_who_listen_at_a_port(undo: ExitStack) -> None:
    port = free_port()
    listeners = [undo.enter_context(each) for each in tcp_listeners("127.0.0.1", port, 2)]
    for _ in range(MANY):
        undo.enter_context(socket.create_connection(("127.0.0.1", port)))
    shares = [_accepted(listener, undo) for listener in listeners]
    assert sum(shares) == MANY
    assert min(shares) > MANY / 4


@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_is_shared_is_taken_for_all_others(count: int, undo: ExitStack) -> None:
    port = free_port()
    for each in tcp_listeners("127.0.0.1", port, count):
        undo.enter_context(each)
    for again in (1, 2):
        with pytest.raises(ProtocolError, match="is in use by another program"):
            tcp_listeners("127.0.0.1", port, again)
    with pytest.raises(ProtocolError, match="is in use by another program"):
        listen("127.0.0.1", port)


def test_a_port_of_somebody_else_is_not_joined(undo: ExitStack) -> None:
    other = undo.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True))
    with pytest.raises(ProtocolError, match="is in use by another program"):
        tcp_listeners("127.0.0.1", other.getsockname()[1], 2)


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_text_clients_find_one_of_several_at_one_address(kind: str, tmp_path: Path, undo: ExitStack) -> None:
    address = f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"ipc://{tmp_path / 'clients'}"
    descriptors = [each.detach() for each in zmq_listeners(address, 2)]
    with pytest.raises(ProtocolError, match="in use by another program"):
        zmq_listeners(address, 2)
    context: zmq.Context[zmq.Socket[bytes]] = undo.enter_context(zmq.Context())
    routers = [undo.enter_context(bind_router(context, address, each)) for each in descriptors]
    clients = [undo.enter_context(context.socket(zmq.DEALER)) for _ in range(40)]
    for number, client in enumerate(clients):
        client.linger = 0
        client.connect(address)
        client.send(b"%d" % number)
    heard: list[int] = []
    poller = zmq.Poller()
    for router in routers:
        poller.register(router, zmq.POLLIN)
    while len(heard) < len(clients):
        ready = poller.poll(10_000)
        assert ready, "somebody was not heard"
        for router, _ in ready:
            identity, frame = router.recv_multipart()
            heard.append(int(frame))
            router.send_multipart((identity, frame))
    assert sorted(heard) == list(range(len(clients)))
    assert [int(client.recv()) for client in clients] == list(range(len(clients)))


def test_an_address_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="there is no directory"):
        zmq_listeners(f"ipc://{tmp_path / 'missing' / 'clients'}", 2)


def _accepted(listener: socket.socket, undo: ExitStack) -> int:
    count = 0
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return count
        undo.enter_context(connection)
        count += 1
