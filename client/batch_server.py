"""A server of OpenAI's API, as a batch asks it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

CONNECT_SECONDS = 10.0
"""How long a connection may take to be made."""

MOST_SHOWN = 200
"""Characters of an answer that is no JSON."""


class NoServerError(Exception):
    """Nobody could be asked, or whoever was asked has gone; the text says why."""


class LateError(Exception):
    """No answer has come in time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the server; `body` is its JSON, or the beginning of a text that is none."""

    status: int
    body: Any
    retry_after: float | None
    request_id: str | None

    @property
    def message(self) -> str:
        """What the server says is wrong."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        said = error.get("message") if isinstance(error, dict) else None
        return f"status {self.status}: {said or self.body}"


@dataclass(frozen=True, slots=True)
class BatchServer:
    """Where the server is, who we are, and how long its answer to one question may take, in seconds."""

    url: str
    api_key: str | None
    timeout: float

    def __post_init__(self) -> None:
        """Raise `ValueError` for what is no URL of a server."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"--url must be like http://127.0.0.1:8000, got {self.url!r}")
        if not parts.path.isascii() or not parts.path.isprintable() or " " in parts.path:
            raise ValueError(f"--url: its path must be visible ASCII, the rest as %XX, got {self.url!r}")
        _ = parts.port  # which may be no number
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("--api-key must be printable ASCII")

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection that is yet to be made."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        assert parts.hostname is not None
        return kind(parts.hostname, parts.port, timeout=CONNECT_SECONDS)

    def ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, request_id: str
    ) -> Reply:
        """Return the answer to one question; the connection serves for others afterwards, if need be made anew.

        Raises `NoServerError` or `LateError`.
        """
        headers = {"content-type": "application/json", "x-request-id": request_id}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        try:
            if connection.sock is None:
                self._connect(connection)
        except (OSError, UnicodeError) as error:  # the latter of a name that can be nobody's
            connection.close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise NoServerError(f"no server answers at {self.url}: {why}") from None
        try:
            connection.request(method, self._base_path() + path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except TimeoutError:
            connection.close()
            raise LateError(f"no answer came within {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoServerError(f"the server at {self.url} has gone: {error or type(error).__name__}") from None
        pause = _seconds(answer.getheader("retry-after"))
        return Reply(answer.status, _json_of(content), pause, answer.getheader("x-request-id"))

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        connection.sock.settimeout(self.timeout)

    def _base_path(self) -> str:
        """Return what stands before the paths of the API; base URLs of OpenAI's clients have these paths' /v1."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")


def _json_of(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content[:MOST_SHOWN].decode(errors="replace")


def _seconds(header: str | None) -> float | None:
    """Return how long Retry-After asks to wait, as a number or as a date; None if it says neither."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # no date, or one without a time zone
        return None
