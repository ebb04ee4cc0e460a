"""A short way for the pieces of a streamed body: from whoever has one straight into its connection."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_NAME = "stepahead.outlet"


class Outlet:
    """Writes pieces of a body that has begun and not ended, as its server would after a dozen calls.

    For a token that is most of what it takes. Only a body in chunks has one (RFC 9112, 7.1), which is how HTTP/1.1
    sends those whose length nobody knows.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        """Write what `cycle` answers."""
        self._cycle = cycle

    @property
    def has_room(self) -> bool:
        """Whether the next piece may be written now; else it has to be sent the long way, which waits."""
        cycle = self._cycle
        return not (cycle.flow.write_paused or cycle.disconnected)

    def write(self, piece: bytes) -> None:
        """Write a piece of the body; an empty one, which would be its end, is none."""
        if piece:
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class WithOutlets:
    """Has those who answer a request behind it find an outlet in its scope; it must be the first the server calls."""

    def __init__(self, app: ASGIApp) -> None:
        """Serve `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        cycle: Any = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and scope["http_version"] == "1.1":
            scope.setdefault("extensions", {})[_NAME] = Outlet(cycle)
        await self._app(scope, receive, send)


def outlet_of(scope: Scope) -> Outlet | None:
    """Return the outlet of a request, if it has one."""
    outlet = scope.get("extensions", {}).get(_NAME)
    assert outlet is None or isinstance(outlet, Outlet)
    return outlet
