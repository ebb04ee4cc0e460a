"""The collector without sockets and clock: gathers spans, writes recordings, shows the last seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from protocol.identity import new_session
from protocol.messages import (
    AskTimeline,
    ClockTold,
    Joined,
    Load,
    Message,
    Ping,
    Pong,
    Record,
    Spans,
    StartTimeline,
    StopTimeline,
    TimelineState,
    Watch,
)
from protocol.sockets import LONGEST_TURN_SECONDS, SILENCE_SECONDS
from timeline.config import wrong_name
from timeline.last_seconds import LastSeconds
from timeline.member import STRANGER, Member
from timeline.recording import Recording
from timeline.trace import ROLES
from timeline.wording import plain

WATCH_SECONDS = 3.0
"""How long spans are recorded after somebody has last looked at the live page."""

TELL_SECONDS, SHOW_SECONDS = 1.0, 0.25
"""How often members send what they record: for a file, and while somebody looks. Each time costs them a moment."""

MOST_MEMBERS = 2**10
"""More processes are no system that anybody looks at; those beyond are not recorded."""

CLOSING_SECONDS = 1.0
"""How long members have to send what they recorded before a recording is closed."""

Said = tuple[bytes, Message]
"""What is to be sent, and to whom."""


class Collector:
    """Messages in, messages out; times are nanoseconds of this host's monotonic clock.

        nothing ── Start ──► recording ── Stop ──► closing ── all have sent what they had, or a second ──► nothing

    Members record while there is a recording, or somebody watches.
    """

    def __init__(self, host: str, directory: Path, most_bytes: int) -> None:
        """Run on `host`, as `Joined` has it; put recordings into `directory`, each of about `most_bytes` at most."""
        self._host = host
        self._directory = directory
        self._most_bytes = most_bytes
        self._life = new_session()
        self._numbers = count(1)
        self._members: dict[bytes, Member] = {}
        self._recording: Recording | None = None
        self._closed: Recording | None = None  # the last one
        self._closed_at = 0
        self._stops: list[tuple[bytes, int]] = []  # who waits for the recording to be closed
        self._missing: set[bytes] = set()  # members that may have more for it
        self._close_by = 0
        self._watched_until = 0
        self._beaten = 0
        self._wanted = Record(False, TELL_SECONDS)  # of the members
        self._last_seconds = LastSeconds()

    def hear(self, peer: bytes, message: Message, clock: int) -> list[Said]:
        """Take a message; return what is to be said to whom."""
        member = self._members.get(peer)
        if member is not None:
            member.silent = 0
        match message:
            case Ping():
                return [(peer, Pong(STRANGER if member is None else self._life, 0))]
            case Joined():
                return self._join(peer, message, clock)
            case Spans() | Load() if member is not None:
                self._take(member, message, clock)
            case Pong() if peer in self._missing:
                self._missing.discard(peer)
            case ClockTold() if member is not None:
                member.clock_told(message.asked, message.clock, clock)
            case StartTimeline():
                return [(peer, self._start_asked(message, clock)), *self._switch(clock)]
            case StopTimeline():
                return self._stop_asked(peer, message.request, clock)
            case AskTimeline():
                return [(peer, self._state(message.request, clock))]
            case Watch():
                view = self._last_seconds.view(clock)
                self._watched_until = clock + int(1e9 * WATCH_SECONDS)
                return [(peer, view), *self._switch(clock)]
            case _:
                pass
        return self._after(clock)

    def beat(self, clock: int) -> list[Said]:
        """Let time pass: forget the silent, ask foreign clocks, close what is to be closed."""
        # While we were stopped everybody seems to have been silent; what they said then has not been read yet.
        turn = min(clock - self._beaten, int(1e9 * LONGEST_TURN_SECONDS))
        self._beaten = clock
        for peer, member in list(self._members.items()):
            member.silent += turn
            if member.silent > 1e9 * SILENCE_SECONDS:
                del self._members[peer]
                self._missing.discard(peer)
        asks: list[Said] = []
        if self._wanted.on:
            for peer, member in self._members.items():
                if (ask := member.ask_clock(clock)) is not None:
                    asks.append((peer, ask))
        return asks + self._after(clock)

    def start(self, path: Path, clock: int) -> None:
        """Begin a recording. Raises `OSError` if its file can't be made."""
        assert self._recording is None
        self._recording = Recording(path, self._most_bytes, clock)

    def close(self, clock: int) -> None:
        """End the recording, if there is one, as it is."""
        if self._recording is not None:
            self._recording.close()
            self._closed, self._closed_at, self._recording = self._recording, clock, None

    @property
    def problem(self) -> str:
        """Why the last recording ended by itself; nothing if it did not."""
        last = self._recording or self._closed
        return "" if last is None else last.problem

    # ------------------------------------------------------------------ members

    def _join(self, peer: bytes, joined: Joined, clock: int) -> list[Said]:
        said = self._switch(clock)
        if peer not in self._members:
            if len(self._members) == MOST_MEMBERS or joined.role not in ROLES:
                return said
            names = {member.joined.name for member in self._members.values()}
            named = replace(
                joined,
                name=next(name for name in _names(plain(joined.name)) if name not in names),
                device=plain(joined.device),
                host=plain(joined.host),
                about=plain(joined.about),
            )
            same_clock = joined.host == self._host
            self._members[peer] = Member(next(self._numbers), named, same_clock)
        return [*said, (peer, self._wanted)]

    def _take(self, member: Member, news: Spans | Load, clock: int) -> None:
        if isinstance(news, Spans):
            member.device_error = max(member.device_error, news.clock_error)
        if not member.clock_known:
            return  # it would land anywhere
        if self._recording is not None:
            self._recording.write(member, news)
        if clock < self._watched_until:
            self._last_seconds.take(member, news, clock)

    # ------------------------------------------------------------------ recordings

    def _start_asked(self, ask: StartTimeline, clock: int) -> TimelineState:
        if self._recording is not None:
            return self._state(ask.request, clock, f"{self._recording.path} is being recorded already")
        name = ask.file or datetime.now(UTC).strftime("timeline-%Y%m%d-%H%M%S.json.gz")
        problem = wrong_name(name)
        if problem:
            return self._state(ask.request, clock, f"file: {problem}")
        path = self._directory / name
        try:
            if path.exists():
                return self._state(ask.request, clock, f"{path} is there already")
            self._directory.mkdir(parents=True, exist_ok=True)
            self.start(path, clock)
        except OSError as error:
            return self._state(ask.request, clock, f"{path} cannot be written: {error.strerror}")
        return self._state(ask.request, clock)

    def _stop_asked(self, peer: bytes, request: int, clock: int) -> list[Said]:
        if self._recording is None:
            return [(peer, self._state(request, clock, "nothing is being recorded"))]
        self._stops.append((peer, request))
        if len(self._stops) > 1:
            return []  # it is being closed
        self._missing = set(self._members)
        self._close_by = clock + int(1e9 * CLOSING_SECONDS)
        asks: list[Said] = [(member, Ping()) for member in self._missing]  # who answers has sent all it had before
        return asks + self._after(clock)

    def _after(self, clock: int) -> list[Said]:
        """Close the recording if it is over; switch members off if nobody needs them any more."""
        recording = self._recording
        if recording is not None:
            if self._stops and (not self._missing or clock >= self._close_by):
                self.close(clock)
                told = [(peer, self._state(request, clock)) for peer, request in self._stops]
                self._stops.clear()
                return [*told, *self._switch(clock)]
            if recording.problem and not self._stops:
                self.close(clock)
        return self._switch(clock)

    def _switch(self, clock: int) -> list[Said]:
        if clock >= self._watched_until:
            self._last_seconds.clear()
        watched = clock < self._watched_until
        wanted = Record(watched or self._recording is not None, SHOW_SECONDS if watched else TELL_SECONDS)
        if wanted == self._wanted:
            return []
        self._wanted = wanted
        return [(peer, wanted) for peer in self._members]

    def _state(self, request: int, clock: int, refusal: str = "") -> TimelineState:
        last = self._recording or self._closed
        if last is None:
            return TimelineState(request, False, "", 0.0, 0, 0, _as_text(refusal), "")
        until = clock if self._recording is not None else self._closed_at
        return TimelineState(
            request=request,
            recording=self._recording is not None,
            file=_as_text(str(last.path)),
            seconds=(until - last.started) / 1e9,
            spans=last.spans,
            bytes=last.size,
            refusal=_as_text(refusal),
            problem=_as_text(last.problem),
        )


def _as_text(words: str) -> str:
    """Return words that may name a file as text, which not every name of a folder is."""
    return words.encode(errors="replace").decode()


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name} #{number}" for number in count(2))
