"""uvicorn inside of somebody else's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from frontend.http.linger import Linger
from frontend.http.outlet import WithOutlets

KEEP_ALIVE_SECONDS = 30
"""How long an idle connection is kept: longer than clients do, or they would use one that is being closed."""

ARRIVAL_SECONDS = 90.0
"""How long a whole request may take to arrive, from its first byte or, at first, from the connection's beginning. Of a
body that is late its sender is told long before."""

FAREWELL_SECONDS = 1
"""How long the last answers may take to leave; then their connections are cut."""


class _Connection(H11Protocol):
    """Is cut off if a request does not arrive in time: uvicorn itself waits for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # of the next request, or of this one: nobody wanted its rest
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._unwatch()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(ARRIVAL_SECONDS, self.transport.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on a listening socket for as long as the context lasts, as a task of the running loop."""
    config = uvicorn.Config(
        WithOutlets(Linger(app)),
        loop="none",
        http=_Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="error",  # a warning for each broken request would let anybody fill the log
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        yield
    finally:
        server.should_exit = True
        done, _ = await asyncio.wait((task,), timeout=FAREWELL_SECONDS)
        if not done:  # somebody does not read what is left for them
            for connection in list(server.server_state.connections):
                connection.transport.abort()
        await task
