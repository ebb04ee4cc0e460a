"""The leanest reader of a stream over HTTP: it looks for what it has to know and parses nothing else."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from bench.contestant import BenchmarkError

DONE = b"data: [DONE]\n\n"
EVENT = b"data: {"
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_BEHIND_BYTES = 16
"""A body in chunks says in so many that it has ended."""

_TAIL_BYTES = 4096
"""The last events, and the end of the stream, fit into so many."""


async def stream(url: str, prompt: Sequence[int], length: int, came: Callable[[], None]) -> int:
    """Stream `length` tokens as a continuation of `prompt` from the server at `url`; return how many came.

    `came` is called for each event, the last of which has the token counts. Each stream has a connection of its own.
    Raises `BenchmarkError`.
    """
    where = urlsplit(url)
    body = json.dumps(
        {
            "prompt": list(prompt),
            "max_tokens": length,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    reader = _Reader(request, came)
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_connection(lambda: reader, where.hostname or "", where.port or 80)
    except OSError as error:
        raise BenchmarkError(f"{url}: {error.strerror or error}") from None
    try:
        return await reader.ended
    finally:
        transport.close()


class _Reader(asyncio.Protocol):
    def __init__(self, request: bytes, came: Callable[[], None]) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._request = request
        self._came = came
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        seen = self._tail[-len(EVENT) + 1 :] + data  # an event's first bytes may have come with the last piece
        for _ in range(seen.count(EVENT)):
            self._came()
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if DONE in self._tail[-len(DONE) - _BEHIND_BYTES :]:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self.ended.done():
            return
        found = _TOKENS.search(self._tail)
        if found is None or DONE not in self._tail:
            said = self._tail.decode(errors="replace").strip().splitlines()
            self.ended.set_exception(BenchmarkError(f"a stream did not end as it should: {said[-1:]}"))
        else:
            self.ended.set_result(int(found[1]))
