"""The answers to one prompt as they are made."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from client.answer import Answer
from client.completion import Completion, Piece
from client.connection import Connection
from client.errors import RequestFailedError, RequestRefusedError, ServerBusyError
from protocol.messages import Chunk, Finish


class TextStream:
    """An async iterator of pieces. The request begins with the first one.

    Closed, left by `async with` or dropped before its end, it aborts the request. Afterwards `completion` has the
    whole answer, and of several `completions` have all, each at its index.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], make_frame: Callable[[int], bytes], answers: int = 1
    ) -> None:
        """Be ready to ask `make_frame(number)` of what `connect` gives, for so many `answers`."""
        self._connect = connect
        self._make_frame = make_frame
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._number = 0
        self._over = False
        self._n = answers
        self._left = answers  # those that have not ended
        self._answers: defaultdict[int, Answer] = defaultdict(Answer)

    @property
    def completion(self) -> Completion:
        """The whole answer, once its last piece has come; of several the first."""
        return _whole(self._answers[0])

    @property
    def completions(self) -> tuple[Completion, ...]:
        """All answers, once the last piece has come."""
        return tuple(_whole(self._answers[index]) for index in range(self._n))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece; raises the client's errors."""
        while not self._over:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                    self._loop = asyncio.get_running_loop()
                    self._number = self._connection.begin(self._make_frame)
                chunk = await self._connection.next_chunk(self._number)
            except BaseException:  # refused before it left, cancelled, or the server is gone
                self._end(cancel=True)
                raise
            piece = self._take(chunk)
            if piece.text or piece.token_ids:
                return piece
        raise StopAsyncIteration

    def _take(self, chunk: Chunk) -> Piece:
        if chunk.finish in (Finish.REFUSED, Finish.BUSY):
            self._end(cancel=False)
            raise (RequestRefusedError if chunk.finish == Finish.REFUSED else ServerBusyError)(chunk.error)
        if chunk.finish == Finish.ERROR:
            self._end(cancel=self._left > 1)
            raise RequestFailedError(chunk.error)
        piece = self._answers[chunk.index].take(chunk)
        if chunk.finish != Finish.RUNNING:
            self._left -= 1
            if not self._left:
                self._end(cancel=False)
        return piece

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        self._end(cancel=True)

    def _end(self, *, cancel: bool) -> None:
        if not self._over:
            self._over = True
            if self._connection is not None:
                self._connection.end(self._number, cancel=cancel)

    def __del__(self) -> None:
        # The last reference may be dropped on any thread, by the garbage collector.
        if not self._over and self._connection is not None and self._loop is not None:
            connection, number = self._connection, self._number
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the request has ended with it
                self._loop.call_soon_threadsafe(lambda: connection.end(number, cancel=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _whole(answer: Answer) -> Completion:
    if answer.completion is None:
        raise RuntimeError("the answer is not complete")
    return answer.completion
