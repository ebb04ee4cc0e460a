"""One connection to a frontend, for as long as the frontend remembers it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from itertools import count

import zmq
import zmq.asyncio

from client.errors import ServerLostError
from protocol.codec import decode, encode
from protocol.errors import ProtocolError
from protocol.identity import new_session
from protocol.messages import Cancel, Chunk, Ping, Pong
from protocol.sockets import HEARTBEAT_SECONDS, SILENCE_SECONDS, connect

FAREWELL_MILLISECONDS = 100
"""How long the last messages may take to leave when a connection is closed."""


class Connection:
    """A socket, its requests, and the watch over both.

    It is lost when the server is silent, or has forgotten it (a Pong with another session): then every request of it
    ends with `ServerLostError`, and a new one has to be opened. A socket is never used again for another session, so
    that what ZeroMQ still holds for the old server never reaches the next.
    """

    def __init__(self, address: str) -> None:
        """Connect, now or when somebody is there; raises `ProtocolError` for what is no address."""
        self._address = address
        self._context = zmq.asyncio.Context()
        try:
            self._socket = connect(self._context.socket(zmq.DEALER), address)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._identity = new_session()
        self._session: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._numbers = count(1)
        self._chunks: dict[int, asyncio.Queue[Chunk | ServerLostError]] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._heard = time.monotonic()
        self._spoke = self._heard
        self._lost: ServerLostError | None = None
        self._say(encode(Ping()))
        self._tasks = [asyncio.create_task(task) for task in (self._speak(), self._listen(), self._watch())]

    @property
    def lost(self) -> bool:
        """Whether it is over."""
        return self._lost is not None

    async def greeted(self, seconds: float) -> None:
        """Wait until the server has answered; raises `ServerLostError` after `seconds`, or if it is lost."""
        if asyncio.get_running_loop() is not self._session.get_loop():
            raise RuntimeError("the client belongs to another event loop: make another one")
        if not self._session.done():
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.wait((self._session,))
            except TimeoutError:
                raise ServerLostError(f"no server answered at {self._address} within {seconds:g} s") from None
        self._session.result()

    def begin(self, make_frame: Callable[[int], bytes]) -> int:
        """Send a request whose frame is made for the number that is returned. `end` lets go of it."""
        number = next(self._numbers)
        frame = make_frame(number)
        self._chunks[number] = asyncio.Queue()
        if self._lost is not None:
            self._chunks[number].put_nowait(self._lost)
        self._say(frame)
        return number

    async def next_chunk(self, number: int) -> Chunk:
        """Return the next chunk of a request; raises `ServerLostError`."""
        chunk = await self._chunks[number].get()
        if isinstance(chunk, ServerLostError):
            raise ServerLostError(str(chunk))
        return chunk

    def end(self, number: int, *, cancel: bool) -> None:
        """Let go of a request, with `cancel` before its last chunk has come."""
        if self._chunks.pop(number, None) is not None and cancel:
            self._say(encode(Cancel(number)))

    async def close(self) -> None:
        """End the connection; the last messages get a moment to leave."""
        try:
            if not self.lost:
                self._tasks[0].cancel()
                await asyncio.wait(self._tasks[:1])
                with contextlib.suppress(asyncio.QueueEmpty, zmq.Again):
                    while True:
                        await self._socket.send(self._outbox.get_nowait(), zmq.DONTWAIT)
        finally:
            self._lose("the client was closed", FAREWELL_MILLISECONDS)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _say(self, frame: bytes) -> None:
        if self._lost is None:
            self._outbox.put_nowait(frame)

    async def _speak(self) -> None:
        while not self.lost:
            frame = await self._outbox.get()
            self._spoke = time.monotonic()
            await self._socket.send(frame)

    async def _listen(self) -> None:
        while not self.lost:
            frames = await self._socket.recv_multipart()
            self._heard = time.monotonic()
            with contextlib.suppress(ProtocolError):
                self._hear(decode(frames[0] if len(frames) == 1 else b"", Chunk, Ping, Pong))

    def _hear(self, message: object) -> None:
        if isinstance(message, Chunk):
            if message.request in self._chunks:
                self._chunks[message.request].put_nowait(message)
        elif isinstance(message, Ping):
            self._say(encode(Pong(self._identity, 0)))
        elif isinstance(message, Pong):
            if not self._session.done():
                self._session.set_result(message.session)
            elif message.session != self._session.result():
                self._lose(f"the server at {self._address} was restarted, or has given up this client")

    async def _watch(self) -> None:
        while not self.lost:
            slept_at = time.monotonic()
            await asyncio.sleep(HEARTBEAT_SECONDS)
            now = time.monotonic()
            if now - slept_at > 2 * HEARTBEAT_SECONDS:
                self._heard = now  # it was we who were stopped; what came meanwhile has not been read yet
            if self._session.done() and now - self._heard >= SILENCE_SECONDS:
                self._lose(f"the server at {self._address} has been silent for {SILENCE_SECONDS:g} s")
            elif now - self._spoke >= HEARTBEAT_SECONDS * 0.9:
                self._say(encode(Ping()))

    def _lose(self, why: str, linger: int = 0) -> None:
        """End every request and let go of everything; what has not left within `linger` milliseconds never will."""
        if self._lost is not None:
            return
        self._lost = ServerLostError(why)
        if not self._session.done():
            self._session.set_exception(ServerLostError(why))
            self._session.exception()  # somebody may wait for it, or nobody
        for chunks in self._chunks.values():
            chunks.put_nowait(self._lost)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._socket.close(linger)
        self._context.term()
