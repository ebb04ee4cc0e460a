"""What a request is called: as its client says in `X-Request-Id`, or else by a name of ours."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.logs import REQUEST

HEADER = b"x-request-id"

MOST_CHARACTERS = 128
"""Of a client's name for a request; more are cut off."""


class RequestId:
    """Names each request for the log, and tells its client the name with the answer.

    A client's name is a label: nothing goes by it, so two live requests may have the same.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Name the requests of `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = _given(scope["headers"]) or uuid4().hex

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, name.encode())]}
            await send(message)

        REQUEST.set(name)  # of this task alone, and left as it is for whoever logs how it ended
        await self._app(scope, receive, say)


def _given(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return what of a client's name can stand in a header and in a line: visible ASCII."""
    given = next((value for name, value in headers if name == HEADER), b"")
    return bytes(byte for byte in given if 0x21 <= byte <= 0x7E)[:MOST_CHARACTERS].decode()
