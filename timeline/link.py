"""A process's end of its conversation with the timeline's collector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import zmq

from protocol.codec import decode
from protocol.errors import ProtocolError
from protocol.messages import (
    ClockAsk,
    ClockTold,
    Joined,
    Load,
    Message,
    Ping,
    Pong,
    Record,
    SpanKind,
    TimelineState,
    View,
)
from protocol.sockets import HEARTBEAT_SECONDS, SILENCE_SECONDS, connect_dealer, receive, send
from timeline.member import STRANGER
from timeline.recorder import Recorder, nanoseconds

WORTH_TELLING_NANOSECONDS = 20_000
"""A flush that took less had nothing to send."""

FAREWELL_MILLISECONDS = 300
"""How long the last spans may take to leave when the process ends."""


class TimelineLink:
    """Sends what a `Recorder` takes, and lets the collector turn it on and off.

        unknown ── Pong of a collector, or one that does not know us ──► Joined ── Record ──► on or off, as it says

    Nothing here waits: a collector that is slow, gone, or was never there costs a process its spans and nothing else.
    Without an address nothing is ever recorded.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str | None,
        me: Joined,
        load: Callable[[int], Load] | None = None,
    ) -> None:
        """Connect to a collector at `address`, to which this process is `me`. Raises `ProtocolError`.

        `load`, given the time, returns what is told along with the spans.
        """
        self.recorder = Recorder()
        self.clock_error = 0  # of the device's spans, in ns
        self.socket = None if address is None else connect_dealer(context, address)
        self._me = me
        self._load = load
        self.there = False  # a collector that we have joined
        self._heard = 0
        self._pinged = -int(1e9 * HEARTBEAT_SECONDS)
        self._flushed = 0
        self._flush_every = int(1e9 * HEARTBEAT_SECONDS)
        self._waiting: Message | None = None  # the socket's queue was full

    def turn(self) -> list[TimelineState | View]:
        """Hear the collector, and send what is due; return what it said to somebody else in this process."""
        if self.socket is None:
            return []
        passed_on = self._hear(self.socket)
        clock = nanoseconds()
        if clock - self._pinged >= 1e9 * HEARTBEAT_SECONDS:
            self._pinged = clock
            self._say(Ping())
        if self.there and clock - self._heard >= 1e9 * SILENCE_SECONDS:
            self.there = self.recorder.on = False
        if clock - self._flushed >= self._flush_every or self.recorder.crowded:
            if self._load is not None and self.recorder.on:
                self._say(self._load(clock))
            self.flush()
        return passed_on

    def say(self, message: Message) -> bool:
        """Send the collector something on somebody's behalf; False if it can't be sent now."""
        return self.there and self._say(message)

    def flush(self) -> None:
        """Send all that was recorded, as far as the socket takes it."""
        began = self._flushed = nanoseconds()
        while self.there:
            message = self._waiting or self.recorder.take(self.clock_error)
            self._waiting = message
            if message is None or not self._say(message):
                break
            self._waiting = None
        if nanoseconds() - began > WORTH_TELLING_NANOSECONDS:
            self.recorder.add(SpanKind.FLUSH, began)

    def close(self) -> None:
        """Send what is left, and close the socket."""
        if self.socket is not None:
            self.flush()
            self.socket.close(FAREWELL_MILLISECONDS)
            self.socket = None

    def _hear(self, socket: zmq.Socket[bytes]) -> list[TimelineState | View]:
        passed_on: list[TimelineState | View] = []
        while (frame := receive(socket)) is not None:
            try:
                message = decode(frame, Ping, Pong, Record, ClockAsk, TimelineState, View)
            except ProtocolError:
                continue  # it is not for spans' sake that anybody fails
            self._heard = nanoseconds()
            match message:
                case Pong() if not self.there or message.session == STRANGER:
                    self.recorder.on = False
                    self.there = self._say(self._me)
                case Record():
                    self.recorder.on = message.on
                    self._flush_every = int(1e9 * message.seconds)
                case Ping():
                    self.flush()  # whoever asks wants everything up to here
                    self._say(Pong(1, 0))
                case ClockAsk():
                    self._say(ClockTold(message.asked, nanoseconds()))
                case TimelineState() | View():
                    passed_on.append(message)
        return passed_on

    def _say(self, message: Message) -> bool:
        return self.socket is not None and send(self.socket, message)


def this_host() -> str:
    """Return what names the clock of this machine's processes: its boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
