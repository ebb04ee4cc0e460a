"""Who may ask."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http.errors import ApiError
from frontend.http.page_files import PAGE_PATHS

OPEN_PATHS = PAGE_PATHS | {"/health", "/ready"}


class KeyGuard:
    """Lets only requests through that bring the key, but for `OPEN_PATHS`.

    Who watches a server needs no key, and the live page has to load before it can ask for one.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        """Guard `app`."""
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it by 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not secrets.compare_digest(given, self._key):
                error = ApiError(
                    401,
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
