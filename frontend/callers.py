"""Clients of the core that live in this process: HTTP requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from frontend.core import FrontendCore
from protocol.awake_clock import AwakeClock
from protocol.logs import REQUEST
from protocol.messages import Chunk, Generate

_PREFIX = b"\0local"
"""ZeroMQ lets no client choose an identity that begins with a zero byte, and those it draws itself have five bytes."""

_Done = TypeVar("_Done")


class Callers:
    """Those who ask from within; each is a peer of the core, under the same rules as those behind a socket.

    What takes them long, such as to read a prompt, they do when the process says so, like everybody else.
    """

    def __init__(self, core: FrontendCore, clock: AwakeClock, wake: Callable[[], None]) -> None:
        """Ask `core`; `wake` lets the process see to what they want done, or the core wants to say."""
        self._core = core
        self._clock = clock
        self._wake = wake
        self._numbers = count()
        self._callers: dict[bytes, Caller] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """How many there are."""
        return len(self._callers)

    def join(self) -> Caller:
        """Take in another one, until it leaves."""
        identity = _PREFIX + next(self._numbers).to_bytes(8)
        caller = self._callers[identity] = Caller(self._core, identity, self._clock, self.in_turn, self._forget)
        return caller

    def tell(self, identity: bytes) -> bool:
        """Say that there is something for a peer; False if it is none of these."""
        caller = self._callers.get(identity)
        if caller is not None:
            caller.tell()
        return caller is not None

    def in_turn(self, work: Callable[[], _Done]) -> asyncio.Future[_Done]:
        """Have something done that takes long; the result is that of `work`, unless it is cancelled before."""
        done: asyncio.Future[_Done] = asyncio.get_running_loop().create_future()

        def do() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(work())
            except Exception as error:  # what fails at one request is no reason to end all others
                done.set_exception(error)

        self._waiting.append(do)
        if self._closed:
            self.do_next()
        else:
            self._wake()
        return done

    def do_next(self) -> bool:
        """Do what has waited longest; False if nothing waits."""
        if not self._waiting:
            return False
        self._waiting.popleft()()
        if self._waiting:
            self._wake()  # should this turn be over
        return True

    def close(self) -> None:
        """Do all that waits, and from now on everything at once: there will be no more turns."""
        self._closed = True
        while self.do_next():
            pass

    def _forget(self, identity: bytes) -> None:
        del self._callers[identity]
        self._wake()  # the core may have something to say of it


class Caller:
    """One of them. What it has not taken waits in the core, one piece of text per request, however slow it is."""

    def __init__(
        self,
        core: FrontendCore,
        identity: bytes,
        clock: AwakeClock,
        in_turn: Callable[[Callable[[], None]], asyncio.Future[None]],
        forget: Callable[[bytes], None],
    ) -> None:
        """Become a peer of `core`."""
        self._core = core
        self._identity = identity
        self._clock = clock
        self._in_turn = in_turn
        self._forget = forget
        self._peer = core.join(identity, clock.now, REQUEST.get())
        self._told = asyncio.Event()
        self._passing: tuple[Callable[[Chunk], bool], asyncio.Future[None]] | None = None
        self._asking: asyncio.Future[None] | None = None

    async def ask(self, message: Generate) -> int:
        """Ask, and wait until it is heard; the answer, be it a refusal, comes in chunks.

        Returns how many tokens the prompt has, 0 if it is refused.
        """
        self._asking = self._in_turn(lambda: self._core.hear_client(self._identity, message, self._clock.now))
        await self._asking
        streams = self._peer.requests.get(message.request)
        return len(streams[0].submit.prompt) if streams else 0

    async def chunk(self) -> Chunk:
        """Wait for and take the next chunk of any of its requests."""
        while (message := self._peer.peek()) is None:
            self._told.clear()
            await self._told.wait()
        self._peer.sent(message, self._clock.now)
        assert isinstance(message, Chunk)
        return message

    async def pass_on(self, take: Callable[[Chunk], bool]) -> None:
        """Have `take` called with each chunk as soon as it is there, until it returns False: that one is for `chunk`.

        It is called in the process's own turn, so no task has to be woken for what it takes. Raises what it raises.
        """
        self._passing = take, asyncio.get_running_loop().create_future()
        try:
            self.tell()
            await self._passing[1]
        finally:
            self._passing = None

    def tell(self) -> None:
        """Say that there may be a chunk."""
        self._told.set()
        if self._passing is None:
            return
        take, over = self._passing
        try:
            while not over.done() and (message := self._peer.peek()) is not None:
                assert isinstance(message, Chunk)
                if take(message):
                    self._peer.sent(message, self._clock.now)
                else:
                    over.set_result(None)
        except Exception as error:  # what fails at one request is no reason to end all others
            over.set_exception(error)

    def leave(self) -> None:
        """Be gone: what is under way is aborted, and what is not yet heard never is."""
        if self._asking is not None:
            self._asking.cancel()
        self._core.client_gone(self._identity)
        self._forget(self._identity)
