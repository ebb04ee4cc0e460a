"""Clients of the core that live in this process: HTTP requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from frontend.core import FrontendCore
from protocol.awake_clock import AwakeClock
from protocol.messages import Chunk, Generate

_PREFIX = b"\0local"
"""ZeroMQ lets no client choose an identity that begins with a zero byte, and those it draws itself have five bytes."""


class Callers:
    """Those who ask from within; each is a peer of the core, under the same rules as those behind a socket."""

    def __init__(self, core: FrontendCore, clock: AwakeClock, wake: Callable[[], None]) -> None:
        """Ask `core`; `wake` lets the process see to what it wants to say then."""
        self._core = core
        self._clock = clock
        self._wake = wake
        self._numbers = count()
        self._callers: dict[bytes, Caller] = {}
        self._questions: dict[bytes, _Question] = {}  # one each at most, in the order in which they came

    def __len__(self) -> int:
        """How many there are."""
        return len(self._callers)

    def join(self) -> Caller:
        """Take in another one, until it leaves."""
        identity = _PREFIX + next(self._numbers).to_bytes(8)
        caller = self._callers[identity] = Caller(
            self._core, identity, self._clock, self._questions, self._wake, self._forget
        )
        return caller

    def hear_next(self, now: float) -> bool:
        """Let the core hear the next question; False if there is none.

        That may take seconds, for a long prompt, so it is the process that says when.
        """
        if not self._questions:
            return False
        identity = next(iter(self._questions))
        question = self._questions.pop(identity)
        if self._questions:
            self._wake()  # for them, if this turn is over
        if not question.heard.cancelled():
            try:
                self._core.hear_client(identity, question.message, now)
            except Exception as error:  # whatever failed at one request is no reason to end all others
                question.heard.set_exception(error)
            else:
                question.heard.set_result(None)
        return True

    def tell(self, identity: bytes) -> bool:
        """Say that there is something for a peer; False if it is none of these."""
        caller = self._callers.get(identity)
        if caller is not None:
            caller.tell()
        return caller is not None

    def _forget(self, identity: bytes) -> None:
        self._questions.pop(identity, None)
        del self._callers[identity]


@dataclass(frozen=True, slots=True)
class _Question:
    """What one of them asks, until the core has heard it."""

    message: Generate
    heard: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Caller:
    """One of them. What it has not taken waits in the core, one piece of text per request, however slow it is."""

    def __init__(
        self,
        core: FrontendCore,
        identity: bytes,
        clock: AwakeClock,
        questions: dict[bytes, _Question],
        wake: Callable[[], None],
        forget: Callable[[bytes], None],
    ) -> None:
        """Become a peer of `core`."""
        self._core = core
        self._identity = identity
        self._clock = clock
        self._questions = questions
        self._wake = wake
        self._forget = forget
        self._peer = core.join(identity, clock.now)
        self._told = asyncio.Event()

    async def ask(self, message: Generate) -> None:
        """Ask, and wait until it is heard; the answer, be it a refusal, comes in chunks."""
        question = self._questions[self._identity] = _Question(message)
        self._wake()
        await question.heard

    async def chunk(self) -> Chunk:
        """Wait for and take the next chunk of any of its requests."""
        while (message := self._peer.peek()) is None:
            self._told.clear()
            await self._told.wait()
        self._peer.sent(message, self._clock.now)
        assert isinstance(message, Chunk)
        return message

    def tell(self) -> None:
        """Say that there may be a chunk."""
        self._told.set()

    def leave(self) -> None:
        """Be gone: what is under way is aborted."""
        self._core.client_gone(self._identity)
        self._forget(self._identity)
        self._wake()
