"""One scheduler, as the frontend knows it."""

from __future__ import annotations

from collections import deque
from math import inf

import numpy as np

from frontend.stream import Stream
from protocol.identity import new_session
from protocol.messages import Abort, AskTotals, Attach, Attached, Finish, Message, Ping, Pong, Submit, Totals
from protocol.sockets import HEARTBEAT_SECONDS, LATE_SECONDS


class SchedulerLink:
    """What runs at one scheduler, what it still has to be sent, and whether it knows us.

    Each attachment has an incarnation of its own: the first Attach with a new one ends, at the scheduler, whatever
    it may still have of ours from before.
    """

    def __init__(self, address: str, now: float) -> None:
        """Begin unattached; `address` is for messages to people."""
        self.address = address
        self.incarnation = new_session()
        self.attached: Attached | None = None
        self.heard = now
        self.lost = now  # since when it has not known us, if it does not
        self.spoke = now
        self.asked = now  # when it was last asked how it is
        self._waits_since: float | None = None  # when it was first asked since it was heard, if it was
        self.streams: dict[int, Stream] = {}
        self.stopped: dict[int, Stream] = {}  # ended by stop strings; its last word on each has still to come
        self.outstanding = 0  # tokens that may still have to be worked on, of all its streams
        self.worker_trouble = ""  # what its last Pong said
        self._serves = True  # and whether it has a worker all the same
        self.totals: Totals | None = None  # what it has counted, as it has said last
        self._asked_totals = -inf  # when it was asked that
        self._outbox: deque[Message] = deque()
        self._ended: list[int] = []

    def attach(self) -> None:
        """Ask to be known."""
        self._outbox.append(Attach(self.incarnation))

    def detach(self, now: float) -> None:
        """Take it that the scheduler has forgotten us: nothing said before counts any more."""
        self.attached = None
        self.worker_trouble = ""
        self.totals = None
        self.lost = now
        self.incarnation = new_session()
        self._outbox.clear()
        self._ended.clear()
        self.stopped.clear()
        self.attach()

    def hear(self, now: float) -> None:
        """Note that it has said something."""
        self.heard = now
        self._waits_since = None

    def ask(self, now: float) -> None:
        """Ask how it is, and each second what it has counted; once if it does not take what is said."""
        self.asked = now
        if self._waits_since is None:
            self._waits_since = now
        if Ping() not in self._outbox:
            self._outbox.append(Ping())
        if now - self._asked_totals >= HEARTBEAT_SECONDS and AskTotals() not in self._outbox:
            self._asked_totals = now
            self._outbox.append(AskTotals())

    def hear_pulse(self, pong: Pong) -> None:
        """Note what it says of its workers."""
        self.worker_trouble = pong.trouble
        self._serves = pong.serves

    def trouble(self, now: float) -> str:
        """Return in words what is wrong with it or one of its workers; nothing if all are well."""
        return self._absence(now) or self.worker_trouble

    def closed(self, now: float) -> str:
        """Return in words why it serves nobody; nothing if it does, be it with fewer workers than it should have."""
        return self._absence(now) or ("" if self._serves else self.worker_trouble)

    def _absence(self, now: float) -> str:
        if self.attached is None:
            return f"the scheduler at {self.address} is not attached"
        if self._waits_since is not None and now - self._waits_since > LATE_SECONDS:
            return f"the scheduler at {self.address} is silent"
        return ""

    def say(self, message: Message) -> None:
        """Let a message wait."""
        self._outbox.append(message)

    def take(self, stream: Stream, submit: Submit) -> None:
        """Have the scheduler serve a stream."""
        self.streams[submit.request] = stream
        self.outstanding += stream.outstanding
        self._outbox.append(submit)

    def give_back(self, stream: Stream, *, abort: bool) -> None:
        """Let go of a stream: it has ended, or with `abort` is to be ended at the scheduler too."""
        del self.streams[stream.request]
        self.outstanding -= stream.outstanding
        if abort and self.attached is not None:
            self._ended.append(stream.request)
            if stream.finish is Finish.STOP:
                self.stopped[stream.request] = stream

    def give_back_all(self) -> list[Stream]:
        """Let go of every stream, for somebody else to serve."""
        streams = list(self.streams.values())
        self.streams.clear()
        self.outstanding = 0
        return streams

    def peek(self) -> Message | None:
        """Return what the scheduler is to be sent next, or None. `sent` takes it off."""
        if not self._outbox and self._ended:  # behind every Submit, and all those of a turn in one message
            self._outbox.append(Abort(np.array(self._ended, "<u8")))
            self._ended.clear()
        return self._outbox[0] if self._outbox else None

    def sent(self, now: float) -> None:
        """Note that what `peek` returned is on its way."""
        self._outbox.popleft()
        self.spoke = now

    def check(self) -> None:
        """Assert what holds between any two events."""
        assert self.outstanding == sum(stream.outstanding for stream in self.streams.values())
        assert all(stream.request == request for request, stream in self.streams.items())
        assert not self.streams.keys() & self.stopped.keys(), "what a stop string has ended is still awaited"
