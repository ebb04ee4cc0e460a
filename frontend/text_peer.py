"""One text client, as the frontend knows it."""

from __future__ import annotations

from collections import deque

from frontend.stream import Stream
from frontend.tally import Tally
from frontend.unread import Unread
from protocol.messages import Chunk, Message

MANY_ANSWERS_WAITING = 4096
"""A peer that lets so many of its refusals lie, and takes none for a while, is not reading; it is forgotten."""

READING_SECONDS = 5.0
"""How long such a peer may take nothing."""

MOST_ANSWERS_WAITING = 100_000
"""A peer that asks so much faster than it reads is forgotten even so: its answers would fill the memory."""


class TextPeer:
    """A connection with its live requests and what it still has to be sent.

    What waits for a slow reader is one `Stream` per answer, which gathers its text in one piece; nothing is queued
    token by token. `session` names what the frontend remembers of this peer: once it was forgotten, Pong shows another.
    """

    def __init__(self, session: int, now: float, tally: Tally, *, local: bool = False, name: str = "") -> None:
        """Begin, having just heard of it. A `local` one lives in this process, and says when it goes.

        `tally` counts what it is sent. `name` is what its requests are called in the log; each has one of its own if
        that is empty.
        """
        self.session = session
        self._name = name
        self._tally = tally
        self.local = local
        self.heard = now
        self.spoke = now
        self.requests: dict[int, list[Stream]] = {}  # the answers to each whose end it has not been told
        self.unread: dict[int, Unread] = {}  # requests that were asked and are not accepted yet
        self.took = now  # since when it has taken nothing, if something waits for it
        self._answers: deque[Message] = deque()  # to its pings and its mistakes
        self._news: dict[Stream, None] = {}  # which answers have something new; a dict for its order

    def name_of(self, request: int) -> str:
        """Return what one of its requests is called in the log."""
        return self._name or f"zmq-{self.session:x}-{request}"

    @property
    def answers_waiting(self) -> int:
        """How many answers it has not taken."""
        return len(self._answers)

    def floods(self, now: float) -> bool:
        """Whether it asks, and does not read what it is told."""
        reads = now - self.took < READING_SECONDS
        return len(self._answers) >= (MOST_ANSWERS_WAITING if reads else MANY_ANSWERS_WAITING)

    def answer(self, message: Message, now: float) -> None:
        """Let a message wait that is no text."""
        if not self._answers:
            self.took = now
        self._answers.append(message)

    def has_news(self, stream: Stream) -> None:
        """Note that one of its answers has something new."""
        self._news[stream] = None

    def speak_for_all(self, stream: Stream) -> list[Stream]:
        """Take it that an answer's end is that of its request; return the others, of which nothing more is told."""
        others = [other for other in self.requests[stream.label] if other is not stream]
        self.requests[stream.label] = [stream]
        for other in others:
            self._news.pop(other, None)
        return others

    def peek(self) -> Message | None:
        """Return what it is to be sent next, or None. `sent` takes it off."""
        if self._answers:
            return self._answers[0]
        while self._news:
            stream = next(iter(self._news))
            chunk = stream.chunk()
            if chunk is not None:
                return chunk
            del self._news[stream]
        return None

    def sent(self, message: Message, now: float) -> None:
        """Note that what `peek` returned is on its way."""
        self.spoke = self.took = now
        if self._answers:
            self._answers.popleft()
            return
        assert isinstance(message, Chunk)
        stream = next(iter(self._news))
        del self._news[stream]
        stream.given()
        if stream.in_pieces:
            self._tally.piece(len(message.token_ids))
        if message.finish:
            answers = self.requests[message.request]
            answers.remove(stream)
            if not answers:
                del self.requests[message.request]
