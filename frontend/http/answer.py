"""One request's answer on its way: whole or as server-sent events, and aborted as soon as nobody is there for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from frontend.callers import Caller
from frontend.http.errors import ApiError
from frontend.http.events import PlainEvents, events_of
from frontend.http.outlet import Outlet, outlet_of
from frontend.http.shapes import FINISH_REASONS
from protocol.messages import Chunk, Finish, Generate


class Telling(Protocol):
    """How an endpoint tells an answer: whole, or in events, of which those that have a `type` are named by it."""

    @property
    def end(self) -> bytes:
        """What a stream ends with, behind its last event."""

    @property
    def steady(self) -> bool:
        """Whether what is told of two pieces of a choice's text differs in that text alone."""

    def expect(self, tokens: int) -> None:
        """Hear how long the next prompt is; raises `ApiError` if there would be too much to tell of all of them."""

    def place(self, chunk: Chunk) -> int:
        """Return the index of the choice that a chunk belongs to."""

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the answer in one piece; `chunks` are the last of each choice, which have all of its text."""

    def opening(self, index: int) -> Iterable[dict[str, Any]]:
        """Return the events that a choice begins with."""

    def news(self, chunk: Chunk) -> Iterable[dict[str, Any]]:
        """Return the events that tell of a chunk."""

    def closing(self, chunks: Sequence[Chunk]) -> Iterable[dict[str, Any]]:
        """Return the events behind the end of the last choice; `chunks` are the last of each."""

    def failed(self, error: ApiError) -> Iterable[dict[str, Any]]:
        """Return the events that a stream ends with in place of these if it fails."""


class Answer(Response):
    """Asks for every choice of a request and sends what comes.

    Nothing is sent before the first piece of an answer is there: what goes wrong until then has a status of its own.
    What goes wrong later is an event, and the stream ends as others do.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        caller: Caller,
        asks: Sequence[Generate],
        shape: Telling,
        explain: Callable[[Chunk], ApiError],
    ) -> None:
        """Be ready to ask; `explain` makes an error of the end of a request that has none of OpenAI's reasons."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._caller = caller
        self._asks = deque(asks)  # those that are not asked yet: their texts are needed no longer than that
        self._choices = sum(ask.n for ask in asks)
        self._streamed = asks[0].stream
        self._shape = shape
        self._explain = explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client goes first; afterwards nothing of it is left in the core."""
        answering = asyncio.create_task(self._answer(scope, receive, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
            leaving.cancel()
            try:
                await asyncio.wait((answering, leaving))
            finally:
                self._caller.leave()
        if not answering.cancelled():
            answering.result()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while self._asks:
                self._shape.expect(await self._caller.ask(self._asks.popleft()))
            first = self._checked(await self._caller.chunk())
            if not self._streamed:
                await JSONResponse(self._shape.whole(await self._all(first)))(scope, receive, send)
                return
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._stream(first, send, outlet_of(scope))
        except ApiError as error:
            await _send_events(self._shape.failed(error), send)
        await send({"type": "http.response.body", "body": self._shape.end, "more_body": False})

    def _checked(self, chunk: Chunk) -> Chunk:
        if chunk.finish != Finish.RUNNING and Finish(chunk.finish) not in FINISH_REASONS:
            raise self._explain(chunk)
        return chunk

    async def _all(self, first: Chunk) -> list[Chunk]:
        chunks = [first, *[self._checked(await self._caller.chunk()) for _ in range(1, self._choices)]]
        return sorted(chunks, key=self._shape.place)

    async def _stream(self, first: Chunk, send: Send, outlet: Outlet | None) -> None:
        for place in range(self._choices):
            await _send_events(self._shape.opening(place), send)
        events = PlainEvents(self._shape.news, self._shape.place, steady=self._shape.steady)

        def written(chunk: Chunk) -> bool:
            if outlet is None or chunk.finish != Finish.RUNNING or not outlet.has_room:
                return False
            outlet.write(events.of(chunk))
            return True

        ended: list[Chunk] = []
        chunk = first
        while True:
            await _send_events(self._shape.news(chunk), send)  # a text that was late for its end, too
            self._checked(chunk)
            if chunk.finish != Finish.RUNNING:
                ended.append(chunk)
            if len(ended) == self._choices:
                break
            await self._caller.pass_on(written)
            chunk = await self._caller.chunk()
        await _send_events(self._shape.closing(ended), send)


async def _send_events(contents: Iterable[dict[str, Any]], send: Send) -> None:
    if events := events_of(contents):
        await send({"type": "http.response.body", "body": events, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
