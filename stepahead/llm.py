"""A model in this program's hands: prompts in, answers out, no server to start beforehand."""

from __future__ import annotations

import io
import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack, cast, overload

import numpy as np

from checkpoint import CheckpointError
from client.ask import Prompt, Settings
from client.async_client import AsyncClient, Messages
from client.completion import Completion
from client.errors import BatchError, RequestFailedError, RequestRefusedError, ServerLostError, StepaheadError
from client.gathering import Answers, Gathering
from client.loop_thread import ClosedError, LoopThread
from client.window import Window
from frontend.text_error import TextError
from protocol.errors import ProtocolError
from stepahead.answer_progress import AnswerProgress
from stepahead.family import StartError
from stepahead.offline_options import Parts, parts_of
from stepahead.preflight import check_text, find_model
from stepahead.progress import Progress
from stepahead.system import System
from timeline.errors import TraceError

LEAST_WINDOW, MOST_WINDOW = 512, 4000
"""Answers under way at once: enough that every slot has a next one waiting; a client that lets more lie is given up."""

Given = Completion | list[Completion] | list[list[Completion]]
"""To one prompt, or of one `n` answers; to a list of them, or of each `n`."""


class LLM:
    """A model that answers as long as this object lives: one frontend, scheduler and worker of this program's own.

    `model` is what launch.py's --model is: a folder, a .gguf file, or a name on the hub; without it, the small default
    model. The keywords are launch.py's options with underscores in their names, but for those about a server's clients.

    >>> llm = LLM(max_model_len=2048, max_num_seqs=16)
    >>> llm.generate("The capital of France is", max_tokens=5, temperature=0).text
    ' Paris.\\n\\nThe'

    Leave it by `with`, `close` it, drop it, or end the program: the processes end in each case. Any number of threads
    may use it at once. What goes wrong is raised as a `StepaheadError`: `StartError` if it can't be started.
    """

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, progress: bool | None = None, **options: Any
    ) -> None:
        """Fetch the model if need be, start, and wait until it serves.

        `progress` says whether standard error tells how that goes, and later how far a list of prompts is; without it,
        if it is a terminal. Raises `StartError`, of keywords `TypeError` (unknown) and `ValueError` (what can't be).
        """
        parts = parts_of({"model": None if model is None else os.fspath(model), **options})
        self._shown = sys.stderr.isatty() if progress is None else progress
        self._progress = AnswerProgress()
        self._system = _started(parts, Progress(None if self._shown else _Nowhere()))
        slots = parts.engine.max_num_seqs * parts.launch.workers
        self._window = Window(min(max(LEAST_WINDOW, 2 * slots), MOST_WINDOW))
        self._client = AsyncClient(self._system.address)
        self._thread = LoopThread()
        client, thread = self._client, self._thread
        self._system.over.add_done_callback(lambda _: thread.close(client.aclose))
        self._close = weakref.finalize(self, _end, self._system, client, thread)

    @property
    def address(self) -> str:
        """Where a `Client` finds it, of this program or of another one of the same user: for streams, for one."""
        return self._system.address

    @overload  # mypy: a text is a list of texts as well, but no caller takes it for one
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, *, n: None = None, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> Completion: ...
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, *, n: int, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> list[Completion]: ...
    @overload
    def generate(
        self, prompts: Iterable[Prompt], *, n: None = None, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> list[Completion]: ...
    @overload
    def generate(
        self, prompts: Iterable[Prompt], *, n: int, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> list[list[Completion]]: ...
    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        *,
        n: int | None = None,
        progress: bool | None = None,
        **settings: Unpack[Settings],
    ) -> Given:
        """Continue a text, token ids, or each of a list of either; `client.ask.Settings` has the settings.

        One in, one out; of a list, a list in its order. With `n`, be it 1, each prompt has a list of `n` answers.

        >>> llm.generate(["1, 2, 3,", [1, 2, 3]], max_tokens=2, temperature=0)[0].text
        ' 4,'
        >>> [answer.finish_reason for answer in llm.generate("Once", n=2, seed=7, max_tokens=3)]
        ['length', 'length']

        Raises the client's errors; where some of a list fail, `BatchError` when all others are answered, which it has.
        Ctrl-C aborts what is under way; afterwards there may be other calls.
        """
        each, alone = _prompts(prompts)
        return self._answer(each, self._client.samples, settings, n, alone=alone, progress=progress)

    @overload
    def chat(
        self, messages: Messages, *, n: None = None, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> Completion: ...
    @overload
    def chat(
        self, messages: Messages, *, n: int, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> list[Completion]: ...
    @overload
    def chat(
        self,
        messages: Iterable[Messages],
        *,
        n: None = None,
        progress: bool | None = None,
        **settings: Unpack[Settings],
    ) -> list[Completion]: ...
    @overload
    def chat(
        self, messages: Iterable[Messages], *, n: int, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> list[list[Completion]]: ...
    def chat(
        self,
        messages: Messages | Iterable[Messages],
        *,
        n: int | None = None,
        progress: bool | None = None,
        **settings: Unpack[Settings],
    ) -> Given:
        """Answer a chat, or each of a list of chats, by the model's chat template; the rest is as in `generate`.

        >>> llm.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0).text
        'The capital of France is Paris.'
        """
        each, alone = _chats(messages)
        return self._answer(each, self._client.chat_samples, settings, n, alone=alone, progress=progress)

    def close(self) -> None:
        """Abort what is under way and end the processes. A closed one can't be used again."""
        self._close()

    def _answer(
        self,
        each: list[Any],
        ask: Callable[..., Awaitable[Answers]],
        settings: Settings,
        n: int | None,
        *,
        alone: bool,
        progress: bool | None,
    ) -> Given:
        if not self._close.alive:
            raise RuntimeError("the LLM is closed")
        if n is not None and not isinstance(n, int):
            raise RequestRefusedError(f"n: expected an integer, got {type(n).__name__}")
        count = 1 if n is None else n
        gathering = Gathering(len(each), count, lambda place: ask(each[place], count, **settings))
        shown = len(each) > 1 and (self._shown if progress is None else progress)
        with self._progress.of(gathering) if shown else nullcontext() as look:
            try:
                self._thread.wait(gathering.run(self._window), look)
            except (ClosedError, ServerLostError) as error:
                gathering.lose(ServerLostError(str(error)))
        answers = [of_one if of_one is None or n is not None else of_one[0] for of_one in gathering.answers]
        errors = {place: self._in_our_words(error) for place, error in gathering.errors.items()}
        if alone and errors:
            raise errors[0]
        if errors:
            raise BatchError(answers, errors)
        return cast(Given, answers[0] if alone else answers)

    def _in_our_words(self, error: StepaheadError) -> StepaheadError:
        """Return what is behind an error, if a process has died."""
        if self._system.failure and isinstance(error, ServerLostError | RequestFailedError):
            return ServerLostError(self._system.failure)
        return error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Nowhere(io.StringIO):
    """Takes what nobody wants to read."""

    def write(self, text: str) -> int:
        return len(text)


def _started(parts: Parts, tell: Progress) -> System:
    try:
        check_text(parts.text)
        parts.timeline.check()
        return System(replace(parts, engine=find_model(parts.engine, tell)), tell)
    except (CheckpointError, ProtocolError, TextError, TraceError) as error:
        raise StartError(str(error), 2) from None
    finally:
        tell.end()


def _end(system: System, client: AsyncClient, thread: LoopThread) -> None:
    thread.close(client.aclose)
    system.close()


def _prompts(given: Any) -> tuple[list[Prompt], bool]:
    """Return the prompts, and whether there is one that was no list's."""
    if isinstance(given, str):
        return [given], True
    listed = _listed(given, "prompts must be a text, token ids, or a list of those")
    if listed and isinstance(listed[0], int | np.integer):
        return [listed], True
    for place, prompt in enumerate(listed):
        if not isinstance(prompt, str | Sequence | np.ndarray) or isinstance(prompt, bytes):
            raise TypeError(f"prompt {place} must be a text or token ids, got {type(prompt).__name__}")
    return listed, False


def _chats(given: Any) -> tuple[list[Messages], bool]:
    """Return the chats, and whether there is one that was no list's."""
    expected = 'must be a list of messages such as {"role": "user", "content": "Hello"}'
    listed = _listed(given, f"a chat {expected}, or a list of such lists")
    alone = bool(listed) and isinstance(listed[0], Mapping)
    chats: list[Messages]
    chats = [listed] if alone else [_listed(chat, f"chat {place} {expected}") for place, chat in enumerate(listed)]
    for place, chat in enumerate(chats):
        for message in chat:
            if not isinstance(message, Mapping):
                raise TypeError(f"chat {place} {expected}, one of its messages is {type(message).__name__}")
    return chats, alone


def _listed(given: Any, expected: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{expected}, got {type(given).__name__}")
    return list(given)
