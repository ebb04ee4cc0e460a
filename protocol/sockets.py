"""ZeroMQ sockets as Stepahead uses them. Nothing else makes one.

Servers bind a ROUTER, which tells its peers apart; those who come to them connect a DEALER. Every conversation is
ordered, both ways, and a message is one frame (a ROUTER sees the peer's identity in front of it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import zmq

from protocol.codec import MAX_FRAME_BYTES, encode
from protocol.endpoints import check_free, for_zmq
from protocol.errors import ProtocolError
from protocol.listeners import inherited
from protocol.messages import Message

_AnySocket = TypeVar("_AnySocket", bound="zmq.Socket[Any]")

PENDING_TO_PEER = 64
"""High-water mark of what waits for one peer. A peer that is slower than this is given its deltas later, in one
piece, from the scheduler's cursors: a longer queue would only hold the same tokens twice."""

PENDING_FROM_PEER = 1024
"""High-water mark of what waits to be read from one peer: a burst of submissions. Beyond it the peer's sends wait."""

HEARTBEAT_SECONDS = 1.0
"""A side that has sent nothing for so long sends Ping."""

SILENCE_SECONDS = 10.0
"""A peer that has sent nothing for so long is gone."""


PULSE_SECONDS = 0.25
"""How often a frontend asks its schedulers how they are, and a scheduler workers to which it says nothing else."""

LATE_SECONDS = 1.0
"""A scheduler or worker that was asked, and has sent nothing for so long since then, is said to be in trouble. Nothing
else follows from it: long before `SILENCE_SECONDS`, users should see it."""

LONGEST_TURN_SECONDS = LATE_SECONDS / 2
"""No turn of a process counts for more when it waits for others: at least two go by, in which their answers are read,
before anybody is late."""

RETRY_SECONDS = 0.02
"""How soon a ROUTER's peer whose queue was full is tried again; ZeroMQ has no event for the room of a single peer."""


@dataclass(frozen=True, slots=True)
class Received:
    """One frame from a ROUTER's peer."""

    peer: bytes
    frame: bytes


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]], address: str, listener: int | None = None
) -> zmq.Socket[bytes]:
    """Return a ROUTER bound to `address`; raises `ProtocolError` in one line if that can't be.

    `listener` is the descriptor of a socket that listens there already (protocol/listeners.py), and the ROUTER's now.
    """
    if listener is None:
        check_free(address)
    target = for_zmq(address)
    router = _prepare(context.socket(zmq.ROUTER), target)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that is gone or full is an error, not a loss
    if listener is not None:
        router.setsockopt(zmq.USE_FD, inherited(listener).detach())
    try:
        router.bind(target)
    except zmq.ZMQError as error:
        router.close()
        raise ProtocolError(f"{address}: {error.strerror}") from None
    return router


def connect_dealer(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """Return a DEALER that connects to `address`, now or when somebody binds it; raises `ProtocolError`."""
    for_zmq(address)  # before there is a socket to close again
    return connect(context.socket(zmq.DEALER), address)


def connect(dealer: _AnySocket, address: str) -> _AnySocket:
    """Set our options on a DEALER of any kind (asyncio's too), connect it to `address` and return it."""
    target = for_zmq(address)
    _prepare(dealer, target).connect(target)
    return dealer


def _prepare(sock: _AnySocket, target: str) -> _AnySocket:
    sock.setsockopt(zmq.IPV6, target.startswith("tcp://["))
    sock.setsockopt(zmq.LINGER, 0)  # nobody waits for the dead when closing
    sock.setsockopt(zmq.SNDHWM, PENDING_TO_PEER)
    sock.setsockopt(zmq.RCVHWM, PENDING_FROM_PEER)
    sock.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)  # a larger frame ends its connection, before it takes memory
    sock.setsockopt(zmq.RECONNECT_IVL, 20)
    sock.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    return sock


def receive_from_peer(router: zmq.Socket[bytes]) -> Received | None:
    """Return the next frame from any peer, or None if none waits. What is not one frame is dropped as empty."""
    try:
        peer, *frames = router.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None
    return Received(peer, frames[0] if len(frames) == 1 else b"")


def receive(dealer: zmq.Socket[bytes]) -> bytes | None:
    """Return the next frame, or None if none waits. What is not one frame is dropped as empty."""
    try:
        frames = dealer.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None
    return frames[0] if len(frames) == 1 else b""


def send_to_peer(router: zmq.Socket[bytes], peer: bytes, message: Message) -> bool:
    """Send to one peer of a ROUTER without waiting; False if its queue is full. Raises `PeerGoneError`."""
    frame = encode(message)
    try:
        router.send(peer, zmq.DONTWAIT | zmq.SNDMORE)  # only here can it fail: the parts of a message go together
        router.send(frame, zmq.DONTWAIT)
    except zmq.Again:
        return False
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            raise PeerGoneError from None
        raise
    return True


def send(dealer: zmq.Socket[bytes], message: Message) -> bool:
    """Send without waiting; False if the queue is full."""
    return send_frame(dealer, encode(message))


def send_frame(dealer: zmq.Socket[bytes], frame: bytes) -> bool:
    """Send what a message is encoded as, without waiting; False if the queue is full."""
    try:
        dealer.send(frame, zmq.DONTWAIT)
    except zmq.Again:
        return False
    return True


class PeerGoneError(Exception):
    """The connection to this peer of a ROUTER is over."""
