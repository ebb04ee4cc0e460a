"""ZeroMQ as we use it: nobody waits for a slow or vanished peer, and garbage hurts nobody."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from protocol.codec import MAX_FRAME_BYTES, decode, encode
from protocol.errors import ProtocolError
from protocol.messages import Ping, Pong
from protocol.sockets import (
    PENDING_FROM_PEER,
    PENDING_TO_PEER,
    PeerGoneError,
    Received,
    bind_router,
    connect,
    connect_dealer,
    receive,
    receive_from_peer,
    send,
    send_to_peer,
)

Context = zmq.Context[zmq.Socket[bytes]]
Sock = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


@pytest.fixture(params=["ipc", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "ipc":
        return f"ipc://{tmp_path / 's'}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def server(context: Context, address: str) -> Iterator[Sock]:
    with bind_router(context, address) as server:
        yield server


@pytest.fixture
def client(context: Context, server: Sock, address: str) -> Iterator[Sock]:
    with connect_dealer(context, address) as client:
        yield client


def next_from_peer(server: Sock) -> Received:
    assert server.poll(5000), "nothing came"
    received = receive_from_peer(server)
    assert received is not None
    return received


def met(server: Sock, client: Sock) -> bytes:
    """Return the identity under which the server knows the client."""
    assert send(client, Ping())
    return next_from_peer(server).peer


def eventually(holds: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def test_messages_go_both_ways(server: Sock, client: Sock) -> None:
    assert receive(client) is None
    assert receive_from_peer(server) is None
    peer = met(server, client)
    assert send_to_peer(server, peer, Pong(5, 6))
    assert client.poll(5000)
    frame = receive(client)
    assert frame is not None
    assert decode(frame) == Pong(5, 6)


def test_a_conversation_keeps_its_order(server: Sock, client: Sock) -> None:
    for step in range(50):
        assert send(client, Pong(1, step))
    assert [decode(next_from_peer(server).frame) for _ in range(50)] == [Pong(1, step) for step in range(50)]


def fill(server: Sock, peer: bytes) -> None:
    """Send until the peer's queue is full: both high-water marks, and what the kernel holds between them."""
    frame = bytes(2**15)
    most = PENDING_TO_PEER + PENDING_FROM_PEER + 2**25 // len(frame)
    for _ in range(most):
        try:
            server.send_multipart((peer, frame), zmq.DONTWAIT)
        except zmq.Again:
            time.sleep(0.05)  # the I/O threads may still be moving frames on
            if not send_to_peer(server, peer, Ping()):
                return
    raise AssertionError("the queue to a silent peer grows without end")


def test_a_server_is_not_held_up_by_a_peer_that_reads_nothing(server: Sock, client: Sock) -> None:
    peer = met(server, client)
    began = time.monotonic()
    fill(server, peer)
    assert send_to_peer(server, peer, Ping()) is False
    assert time.monotonic() - began < 10


def test_a_client_is_not_held_up_by_a_server_that_is_not_there(context: Context, address: str) -> None:
    with connect_dealer(context, address) as client:
        assert [send(client, Ping()) for _ in range(PENDING_TO_PEER)] == [True] * PENDING_TO_PEER
        assert send(client, Ping()) is False


def test_other_peers_are_served_while_one_is_full(context: Context, server: Sock, client: Sock, address: str) -> None:
    full = met(server, client)
    fill(server, full)
    with connect_dealer(context, address) as other:
        assert send_to_peer(server, met(server, other), Pong(1, 1))
        assert other.poll(5000)


def test_a_vanished_peer_is_an_error_of_its_own(server: Sock, client: Sock) -> None:
    peer = met(server, client)
    client.close()

    def gone() -> bool:
        try:
            send_to_peer(server, peer, Ping())
        except PeerGoneError:
            return True
        return False

    assert eventually(gone)


def test_a_peer_that_never_was_is_gone(server: Sock) -> None:
    with pytest.raises(PeerGoneError):
        send_to_peer(server, b"nobody", Ping())


def test_a_client_finds_a_server_that_comes_later_and_one_that_comes_back(context: Context, address: str) -> None:
    with connect_dealer(context, address) as client:
        assert send(client, Pong(1, 1))
        for step in (1, 2):
            with Context() as its_own, bind_router(its_own, address) as server:
                assert decode(next_from_peer(server).frame) == Pong(1, step)
            assert send(client, Pong(1, step + 1)) or step == 2


def test_an_oversize_frame_is_dropped_and_the_server_lives(
    context: Context, server: Sock, client: Sock, address: str
) -> None:
    met(server, client)
    with context.socket(zmq.DEALER) as hostile:
        hostile.setsockopt(zmq.LINGER, 0)
        hostile.connect(address)
        hostile.send(bytes(MAX_FRAME_BYTES + 1))
        assert send(client, Pong(1, 1))
        assert decode(next_from_peer(server).frame) == Pong(1, 1)
        assert not server.poll(300)


@pytest.mark.parametrize(
    "frames", [[b"", encode(Ping())], [encode(Ping()), b""], [b""], [b"x"] * 1000], ids=lambda frames: len(frames)
)
def test_what_is_not_one_frame_is_no_message(server: Sock, client: Sock, frames: list[bytes]) -> None:
    client.send_multipart(frames)
    with pytest.raises(ProtocolError):
        decode(next_from_peer(server).frame)
    assert send(client, Ping())
    assert decode(next_from_peer(server).frame) == Ping()


def test_a_client_takes_what_is_not_one_frame_for_no_message(server: Sock, client: Sock) -> None:
    server.send_multipart([met(server, client), encode(Ping()), encode(Ping())])
    assert client.poll(5000)
    assert receive(client) == b""


def test_sockets_of_other_types_are_no_danger(context: Context, server: Sock, client: Sock, address: str) -> None:
    others = [context.socket(kind) for kind in (zmq.REQ, zmq.PUSH, zmq.SUB, zmq.PAIR, zmq.ROUTER)]
    for other in others:
        other.setsockopt(zmq.LINGER, 0)
        other.connect(address)
    others[0].send(b"a request")
    with pytest.raises(ProtocolError):  # an empty frame stands before a request: it is two
        decode(next_from_peer(server).frame)
    assert send(client, Ping())
    assert decode(next_from_peer(server).frame) == Ping()
    for other in others:
        other.close()


def raw(address: str) -> socket.socket:
    if address.startswith("ipc"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("ipc://"))
        return sock
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)))


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 5000,
        b"",
        b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48) + b"\x02" + struct.pack(">Q", 2**63),
    ],
    ids=["http", "ones", "nothing", "huge frame announced"],
)
def test_bytes_that_are_not_zeromq_hurt_nobody(server: Sock, client: Sock, address: str, garbage: bytes) -> None:
    with raw(address) as stranger:
        stranger.sendall(garbage)
        assert send(client, Ping())
        assert decode(next_from_peer(server).frame) == Ping()


def test_a_tcp_server_listens_on_loopback_only(context: Context) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with bind_router(context, f"tcp://127.0.0.1:{port}"):
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        wanted = f"{struct.unpack('=I', socket.inet_aton('127.0.0.1'))[0]:08X}:{port:04X}"
        assert wanted in listening
        assert f"00000000:{port:04X}" not in listening


def test_closing_does_not_wait_for_what_was_never_delivered(context: Context, address: str) -> None:
    client = connect_dealer(context, address)
    assert send(client, Ping())
    client.close()
    began = time.monotonic()
    context.term()
    assert time.monotonic() - began < 1


async def test_asyncio_sockets_get_the_same_options(address: str) -> None:
    with zmq.asyncio.Context() as context, connect(context.socket(zmq.DEALER), address) as dealer:
        assert dealer.getsockopt(zmq.LINGER) == 0
        assert dealer.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME_BYTES
        assert dealer.getsockopt(zmq.SNDHWM) == PENDING_TO_PEER
