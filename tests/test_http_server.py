"""Connections to the HTTP server: who sends no whole request is cut off, who waits for an answer is not and gets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.types import Receive, Scope, Send

from frontend.http.server import serving
from protocol.endpoints import listen

SOON = 0.2
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, then take longer than a request may."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(2 * SOON)
    await indifferent(scope, receive, send)


async def indifferent(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without a look at the body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"Yes"})


@asynccontextmanager
async def connection(
    app: Callable[[Scope, Receive, Send], Coroutine[None, None, None]],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with listen("127.0.0.1", 0) as listener:
        async with serving(app, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            yield reader, writer
            writer.close()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.http.server.ARRIVAL_SECONDS", SOON)


async def is_cut(reader: asyncio.StreamReader) -> None:
    """Fail unless the connection ends soon."""
    async with asyncio.timeout(10 * SOON):
        with suppress(ConnectionResetError):
            await reader.read()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"abc"], ids=["nothing", "a line", "a head", "more"])
@pytest.mark.parametrize("app", [slow, indifferent])
async def test_a_request_that_never_comes_to_its_end_ends_its_connection(
    app: Callable[[Scope, Receive, Send], Coroutine[None, None, None]], sent: bytes
) -> None:
    async with connection(app) as (reader, writer):
        writer.write(sent)
        await is_cut(reader)


async def test_one_that_comes_byte_by_byte_is_not_given_more_time() -> None:
    async with connection(indifferent) as (reader, writer):
        began = asyncio.get_running_loop().time()
        writer.write(HEAD.replace(b"5", b"5000"))
        cut = asyncio.create_task(is_cut(reader))
        while not cut.done():
            writer.write(b"a")
            await asyncio.sleep(0.01)
        await cut
        assert asyncio.get_running_loop().time() - began < 5 * SOON


async def test_a_request_that_is_there_has_all_the_time_for_its_answer_and_so_has_the_next() -> None:
    async with connection(slow) as (reader, writer):
        for _ in range(2):
            writer.write(HEAD)
            await asyncio.sleep(SOON / 2)
            writer.write(b"abcde")
            assert (await reader.readuntil(b"Yes")).startswith(b"HTTP/1.1 200")


async def test_an_idle_connection_is_kept() -> None:
    async with connection(indifferent) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"Yes")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(2 * SOON)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
async def test_an_answer_that_comes_before_the_end_of_its_request_is_not_lost(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.http.server.ARRIVAL_SECONDS", 10.0)
    async with connection(indifferent) as (reader, writer):
        size = 30_000_000
        writer.write(HEAD.replace(b"5\r\n", b"%d\r\n" % size + more))
        for _ in range(30):
            writer.write(bytes(size // 30))
            await writer.drain()
        assert (await reader.readuntil(b"Yes")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("bound", ["LINGER_SECONDS", "MOST_DISCARDED"])
async def test_what_never_ends_is_read_for_a_while_only(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.http.server.ARRIVAL_SECONDS", 10.0)
    monkeypatch.setattr("frontend.http.linger.LINGER_SECONDS", SOON if bound == "LINGER_SECONDS" else 10.0)
    monkeypatch.setattr("frontend.http.linger.MOST_DISCARDED", 2**20 if bound == "MOST_DISCARDED" else 2**40)
    async with connection(indifferent) as (reader, writer):
        writer.write(HEAD.replace(b"5\r\n", b"1000000000\r\nConnection: close\r\n"))
        assert (await reader.readuntil(b"Yes")).startswith(b"HTTP/1.1 200")
        cut = asyncio.create_task(is_cut(reader))
        while not cut.done():
            writer.write(bytes(2**16))
            await asyncio.sleep(0.01)
        await cut
