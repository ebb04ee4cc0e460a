"""One answer as it is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from client.completion import Completion, Piece, TokenLogprob, logprobs_of
from client.connection import Connection
from client.errors import RequestFailedError, RequestRefusedError, ServerBusyError
from protocol.messages import Chunk, Finish


class TextStream:
    """An async iterator of pieces. The request begins with the first one.

    Closed, left by `async with` or dropped before its end, it aborts the request. Afterwards `completion` has the
    whole answer.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], make_frame: Callable[[int], bytes]) -> None:
        """Be ready to ask `make_frame(number)` of what `connect` gives."""
        self._connect = connect
        self._make_frame = make_frame
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._number = 0
        self._over = False
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        """The whole answer, once the last piece has come."""
        if self._completion is None:
            raise RuntimeError("the answer is not complete")
        return self._completion

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
        piece = Piece(chunk.text, tuple(chunk.token_ids.tolist()), logprobs_of(chunk))
        if piece.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += piece.logprobs
        self._text.append(piece.text)
        self._token_ids += piece.token_ids
        if chunk.finish != Finish.RUNNING:
            self._end(cancel=False)
            if chunk.finish == Finish.REFUSED:
                raise RequestRefusedError(chunk.error)
            if chunk.finish == Finish.ERROR:
                raise RequestFailedError(chunk.error)
            if chunk.finish == Finish.BUSY:
                raise ServerBusyError(chunk.error)
            self._completion = Completion(
                text="".join(self._text),
                token_ids=tuple(self._token_ids),
                finish_reason=Finish(chunk.finish).name.lower(),
                prompt_tokens=chunk.prompt_tokens,
                output_tokens=chunk.output_tokens,
                cached_tokens=chunk.cached_tokens,
                logprobs=None if self._logprobs is None else tuple(self._logprobs),
            )
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
