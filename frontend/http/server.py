"""uvicorn inside of somebody else's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

KEEP_ALIVE_SECONDS = 30
"""How long an idle connection is kept: longer than clients do, or they would use one that is being closed."""

FAREWELL_SECONDS = 1
"""How long the last answers may take to leave; then their connections are cut."""


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on a listening socket for as long as the context lasts, as a task of the running loop."""
    config = uvicorn.Config(
        app,
        loop="none",
        http="h11",
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
