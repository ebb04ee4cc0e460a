"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from client.ask import Prompt, Settings, ask
from client.completion import Completion
from client.connection import Connection
from client.errors import RequestFailedError, RequestRefusedError, ServerBusyError
from client.text_stream import TextStream
from protocol.endpoints import DEFAULT_ADDRESS, parse
from protocol.errors import ProtocolError

CONNECT_SECONDS = 10.0
"""How long a server may take to answer at first."""

Messages = Iterable[Mapping[str, Any]]
"""A chat: maps with `role` and `content`."""


class AsyncClient:
    """Asks a Stepahead server for text. It connects when first asked, and again after it has lost the server.

    Any number of requests may be under way at once, all within one event loop. Every call ends: with an answer, or
    with `RequestRefusedError`, `RequestFailedError`, `ServerBusyError` or `ServerLostError`. `Settings` says how an
    answer may be shaped.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        """Remember where the server is: a tcp:// address on this host, or an ipc:// one; others raise `ValueError`."""
        try:
            parse(address)
        except ProtocolError as error:
            raise ValueError(str(error)) from None
        self._address = address
        self._connect_seconds = connect_seconds
        self._connection: Connection | None = None
        self._closed = False

    async def generate(self, prompt: Prompt, **settings: Unpack[Settings]) -> Completion:
        """Continue a text or token ids."""
        return await self._whole(prompt, None, settings)

    async def chat(self, messages: Messages, **settings: Unpack[Settings]) -> Completion:
        """Answer a chat, by the model's chat template."""
        return await self._whole(None, tuple(messages), settings)

    async def generate_batch(self, prompts: Sequence[Prompt], **settings: Unpack[Settings]) -> list[Completion]:
        """Continue every prompt; answer i belongs to prompt i. If one fails, the others are aborted and it raises."""
        return await _all([self.generate(prompt, **settings) for prompt in prompts])

    async def samples(self, prompt: Prompt, n: int, **settings: Unpack[Settings]) -> list[Completion]:
        """Continue a text or token ids in `n` ways. If one fails, the others are aborted and it raises."""
        return await self._all(prompt, None, settings, n)

    async def chat_samples(self, messages: Messages, n: int, **settings: Unpack[Settings]) -> list[Completion]:
        """Answer a chat in `n` ways. If one fails, the others are aborted and it raises."""
        return await self._all(None, tuple(messages), settings, n)

    def stream(self, prompt: Prompt, *, n: int = 1, **settings: Unpack[Settings]) -> TextStream:
        """Continue a text or token ids, in `n` ways at once, piece by piece."""
        return self._stream(prompt, None, settings, n)

    def stream_chat(self, messages: Messages, *, n: int = 1, **settings: Unpack[Settings]) -> TextStream:
        """Answer a chat, in `n` ways at once, piece by piece."""
        return self._stream(None, tuple(messages), settings, n)

    async def aclose(self) -> None:
        """Abort what is under way and let go of the server. A closed client can't be used again."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _stream(
        self, prompt: Prompt | None, messages: Messages | None, settings: Settings, n: int, *, stream: bool = True
    ) -> TextStream:
        return TextStream(
            self._connected, lambda number: ask(number, prompt, messages, stream=stream, settings=settings, n=n), n
        )

    async def _whole(self, prompt: Prompt | None, messages: Messages | None, settings: Settings) -> Completion:
        (answer,) = await self._all(prompt, messages, settings, 1)
        return answer

    async def _all(
        self, prompt: Prompt | None, messages: Messages | None, settings: Settings, n: int
    ) -> list[Completion]:
        async with self._stream(prompt, messages, settings, n, stream=False) as answers:
            async for _ in answers:
                pass
            return list(answers.completions)

    async def _connected(self) -> Connection:
        if self._closed:
            raise RuntimeError("the client is closed")
        connection = self._connection
        if connection is None or connection.lost:
            connection = self._connection = Connection(self._address)
        await connection.greeted(self._connect_seconds)
        return connection  # or lost by now, if we were closed meanwhile: then it says so to whoever asks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _all(calls: Sequence[Coroutine[Any, Any, Completion]]) -> list[Completion]:
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        await asyncio.gather(*tasks)
    except BaseException as error:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(error, RequestRefusedError | RequestFailedError | ServerBusyError):
            culprit = next(i for i, task in enumerate(tasks) if not task.cancelled() and task.exception() is error)
            raise type(error)(f"prompt {culprit}: {error}") from None
        raise
    return [task.result() for task in tasks]
