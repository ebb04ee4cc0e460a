"""The client for everybody else: the same verbs, blocking."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from client.ask import Prompt, Settings
from client.async_client import CONNECT_SECONDS, AsyncClient, Messages
from client.completion import Completion, Piece
from client.errors import ServerLostError
from client.loop_thread import ClosedError, LoopThread
from client.text_stream import TextStream
from protocol.endpoints import DEFAULT_ADDRESS


class Client:
    """An `AsyncClient` on an event loop of its own thread. Any number of threads may use it at once.

    While it waits for work of its own, the thread keeps the server informed that we are alive.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        """Remember where the server is; see `AsyncClient`."""
        self._client = AsyncClient(address, connect_seconds=connect_seconds)
        self._thread = LoopThread()
        # A client that is dropped, or still there when the program ends, is closed too.
        self._close = weakref.finalize(self, self._thread.close, self._client.aclose)

    def generate(self, prompt: Prompt, **settings: Unpack[Settings]) -> Completion:
        """Continue a text or token ids."""
        return self._thread.wait(self._client.generate(prompt, **settings))

    def chat(self, messages: Messages, **settings: Unpack[Settings]) -> Completion:
        """Answer a chat, by the model's chat template."""
        return self._thread.wait(self._client.chat(messages, **settings))

    def generate_batch(self, prompts: Sequence[Prompt], **settings: Unpack[Settings]) -> list[Completion]:
        """Continue every prompt; answer i belongs to prompt i. If one fails, the others are aborted and it raises."""
        return self._thread.wait(self._client.generate_batch(prompts, **settings))

    def samples(self, prompt: Prompt, n: int, **settings: Unpack[Settings]) -> list[Completion]:
        """Continue a text or token ids in `n` ways. If one fails, the others are aborted and it raises."""
        return self._thread.wait(self._client.samples(prompt, n, **settings))

    def chat_samples(self, messages: Messages, n: int, **settings: Unpack[Settings]) -> list[Completion]:
        """Answer a chat in `n` ways. If one fails, the others are aborted and it raises."""
        return self._thread.wait(self._client.chat_samples(messages, n, **settings))

    def stream(self, prompt: Prompt, *, n: int = 1, **settings: Unpack[Settings]) -> BlockingStream:
        """Continue a text or token ids, in `n` ways at once, piece by piece."""
        return BlockingStream(self, self._thread, self._client.stream(prompt, n=n, **settings))

    def stream_chat(self, messages: Messages, *, n: int = 1, **settings: Unpack[Settings]) -> BlockingStream:
        """Answer a chat, in `n` ways at once, piece by piece."""
        return BlockingStream(self, self._thread, self._client.stream_chat(messages, n=n, **settings))

    def close(self) -> None:
        """Abort what is under way, let go of the server and end the thread."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingStream:
    """An iterator of pieces; `TextStream` has the rules."""

    def __init__(self, client: Client, thread: LoopThread, stream: TextStream) -> None:
        """Iterate over `stream` on the client's thread."""
        self._client = client  # it closes when it is dropped
        self._thread = thread
        self._stream = stream

    @property
    def completion(self) -> Completion:
        """The whole answer, once its last piece has come; of several the first."""
        return self._stream.completion

    @property
    def completions(self) -> tuple[Completion, ...]:
        """All answers, once the last piece has come."""
        return self._stream.completions

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        """Return the next piece; raises the client's errors."""
        piece = self._thread.wait(_next_piece(self._stream))
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Abort the request unless it has ended; it has, when the client was closed."""
        with contextlib.suppress(ClosedError, ServerLostError):
            self._thread.wait(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next_piece(stream: TextStream) -> Piece | None:
    # StopAsyncIteration can't pass through a future.
    return await anext(stream, None)
