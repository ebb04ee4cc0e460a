"""Several frontends as one: they share an address for each kind of client, and what they have counted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from frontend.config import FrontendConfig, ServeConfig, TextConfig
from frontend.seeds import sample_seed
from protocol.endpoints import PrivateDirectory
from protocol.errors import ProtocolError
from protocol.listeners import tcp_listeners, zmq_listeners
from protocol.logs import TEXT, LogConfig
from protocol.options import to_arguments
from stepahead.family import Child, Family, StartError


def start_frontends(
    family: Family,
    count: int,
    config: FrontendConfig,
    text: TextConfig,
    serve: ServeConfig,
    run: PrivateDirectory,
    logs: LogConfig = TEXT,
) -> list[Child]:
    """Start so many frontends as `config` describes one; what they share lies in `run`.

    They are named by their numbers, unless there is only one, which binds its addresses itself. Raises `StartError`.
    """
    if count == 1:
        return [family.start(config.name, "frontend", to_arguments(config, text, serve, logs))]
    children = []
    with _listening(config.bind, serve, count) as listeners:
        for number, (for_zmq, for_http) in enumerate(listeners):
            own = replace(
                config,
                name=f"{config.name} {number}",
                # Each draws its own, or two would give the same seed to requests that are alike.
                seed=None if config.seed is None else sample_seed(config.seed, number),
                zmq_listener=for_zmq.fileno(),
                http_listener=None if for_http is None else for_http.fileno(),
                counts=str(run.path / "counts"),
                place=number,
                places=count,
            )
            inherits = [each.fileno() for each in (for_zmq, for_http) if each is not None]
            children.append(family.start(own.name, "frontend", to_arguments(own, text, serve, logs), inherits=inherits))
    return children


@contextmanager
def _listening(
    address: str, serve: ServeConfig, count: int
) -> Iterator[list[tuple[socket.socket, socket.socket | None]]]:
    """Yield a pair of listening sockets for each; here they are closed again."""
    with ExitStack() as undo:
        for_http: list[socket.socket | None] = [None] * count
        try:
            for_zmq = [undo.enter_context(each) for each in zmq_listeners(address, count)]
            if serve.http:
                for_http = [undo.enter_context(each) for each in tcp_listeners(serve.host, serve.port, count)]
        except ProtocolError as error:
            raise StartError(str(error), 2) from None
        yield list(zip(for_zmq, for_http, strict=True))
