"""One address that several processes serve: each inherits a listening socket, made by the parent of them all.

Of a TCP port each has a socket of its own, and the kernel deals connections out among them by a hash of both ends
(SO_REUSEPORT). One shared socket would go to whoever accepts first, and who has just accepted is awake and does. For a
Unix path there is no such thing: there it is one socket.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from protocol.endpoints import BACKLOG, check_free, listen, parse
from protocol.errors import ProtocolError


def tcp_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """Return so many sockets that listen there; raises `ProtocolError` in one line, as `endpoints.listen` does."""
    with ExitStack() as undo:
        listeners = [undo.enter_context(listen(host, port, shared=count > 1))]
        listeners += [undo.enter_context(listen(host, port, joins=True)) for _ in range(1, count)]
        undo.pop_all()
        return listeners


def zmq_listeners(address: str, count: int) -> list[socket.socket]:
    """Return so many sockets that listen at a `tcp://` or `ipc://` address; raises `ProtocolError` in one line."""
    check_free(address)
    where = parse(address)
    if not isinstance(where, Path):
        return tcp_listeners(*where, count)
    with ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            listener.bind(str(where))
            listener.listen(BACKLOG)
        except OSError as error:
            raise ProtocolError(f"{address}: {error.strerror or error}") from None
        listener.setblocking(False)
        listeners = [listener, *(listener.dup() for _ in range(1, count))]
        undo.pop_all()
        return listeners


def inherited(descriptor: int) -> socket.socket:
    """Return the listening socket that the parent left under a number; it is not for our own children."""
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener
