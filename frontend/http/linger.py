"""The end of an answer to a request that is still on its way."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LINGER_SECONDS = 2.0
MOST_DISCARDED = 2**27
"""How long, and how many bytes, the rest of a request is read for that is answered already."""


class Linger:
    """Reads what is still coming of a request after its answer, and throws it away, before the answer ends.

    A connection that is closed while bytes come in is reset, which takes an answer away that its client has not read.
    """

    def __init__(self, app: ASGIApp) -> None:
        """See to the answers of `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        coming = True  # or nobody has looked

        async def hear() -> Message:
            nonlocal coming
            message = await receive()
            coming = message.get("more_body", False)
            return message

        async def discard() -> None:
            left = MOST_DISCARDED
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    while coming and left > 0:
                        left -= len((await hear()).get("body", b""))

        async def say(message: Message) -> None:
            if coming and message["type"] == "http.response.body" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await discard()
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, hear, say)
