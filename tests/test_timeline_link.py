"""A process and its collector: recording follows the collector's word, and nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from protocol.codec import decode
from protocol.errors import ProtocolError
from protocol.messages import ClockAsk, ClockTold, Joined, Load, Message, Ping, Pong, Record, SpanKind, Spans, View
from protocol.sockets import bind_router, receive_from_peer, send_to_peer
from timeline import link as link_module
from timeline import recorder as recorder_module
from timeline.link import WORTH_TELLING_NANOSECONDS, TimelineLink, this_host
from timeline.member import STRANGER
from timeline.recorder import CAPACITY, nanoseconds

ME = Joined("worker 0", "worker", 1, "here", "cpu")


class StubCollector:
    """A bound socket that says what a test wants it to."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, life: int = 2) -> None:
        self.router = bind_router(context, address)
        self.life = life
        self.peer = b""

    def hear(self, seconds: float = 5.0) -> Message:
        assert self.router.poll(int(1000 * seconds)), "nothing comes"
        received = receive_from_peer(self.router)
        assert received is not None
        self.peer = received.peer
        return decode(received.frame, Ping, Pong, Joined, Spans, Load, ClockTold)

    def say(self, message: Message) -> None:
        assert send_to_peer(self.router, self.peer, message)


class Place:
    """Where a link and a collector meet; both are closed in the end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._made: list[TimelineLink | zmq.Socket[bytes]] = []

    def link(self, load: Callable[[int], Load] | None = None, *, alone: bool = False) -> TimelineLink:
        link = TimelineLink(self._context, None if alone else self._address, ME, load)
        self._made.append(link)
        return link

    def collector(self, life: int = 2) -> StubCollector:
        collector = StubCollector(self._context, self._address, life)
        self._made.append(collector.router)
        return collector

    def try_collector(self, life: int) -> StubCollector | None:
        """As `collector`, but None while another one still has the address."""
        try:
            return self.collector(life)
        except ProtocolError:
            return None

    def joined(self, load: Callable[[int], Load] | None = None) -> tuple[TimelineLink, StubCollector]:
        collector = self.collector()
        link = self.link(load)
        link.turn()
        assert collector.hear() == Ping()
        collector.say(Pong(collector.life, 0))
        turn_until(link, "pong")
        assert collector.hear() == ME
        return link, collector

    def close(self) -> None:
        for made in self._made:
            made.close()
        self._context.term()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(f"ipc://{tmp_path / 'collector'}")
    yield made
    made.close()


def turn_until(link: TimelineLink, heard: str) -> None:
    """Let the link take what the collector has said."""
    assert link.socket is not None
    assert link.socket.poll(5000), heard
    link.turn()


def add(link: TimelineLink, count: int = 1) -> None:
    for number in range(count):
        link.recorder.add(SpanKind.PLAN, number, number)


def test_without_an_address_nothing_is_recorded_or_said(place: Place) -> None:
    link = place.link(alone=True)
    assert link.turn() == []
    assert link.socket is None
    assert not link.recorder.on
    assert not link.say(Ping())
    link.close()


def test_it_records_when_it_is_told_to_and_sends_what_it_has(place: Place) -> None:
    link, collector = place.joined()
    collector.say(Record(True, 0.25))
    turn_until(link, "record")
    assert link.recorder.on
    add(link, 3)
    link.flush()
    spans = collector.hear()
    assert isinstance(spans, Spans)
    assert spans.start.tolist() == [0, 1, 2]
    collector.say(Record(False, 1.0))
    turn_until(link, "record")
    assert not link.recorder.on


def test_a_ping_is_answered_after_everything_that_was_recorded(place: Place) -> None:
    link, collector = place.joined()
    link.recorder.on = True
    add(link)
    collector.say(Ping())
    turn_until(link, "ping")
    assert isinstance(collector.hear(), Spans)
    assert isinstance(collector.hear(), Pong)


def test_what_is_recorded_is_sent_when_it_is_time_and_before_it_is_lost(place: Place) -> None:
    link, collector = place.joined()
    collector.say(Record(True, 1000.0))
    turn_until(link, "record")
    link.flush()
    add(link, CAPACITY // 2)
    link.turn()
    assert not collector.router.poll(50)
    add(link)
    link.turn()
    assert isinstance(collector.hear(), Spans)


def test_a_clock_is_told(place: Place) -> None:
    link, collector = place.joined()
    before = nanoseconds()
    collector.say(ClockAsk(77))
    turn_until(link, "question")
    told = collector.hear()
    assert isinstance(told, ClockTold)
    assert told.asked == 77
    assert before <= told.clock <= nanoseconds()


def test_a_collector_that_was_restarted_is_joined_anew_and_recording_ends(place: Place) -> None:
    link, collector = place.joined()
    link.recorder.on = True
    collector.router.close()
    deadline = time.monotonic() + 10
    while (again := place.try_collector(STRANGER)) is None:
        assert time.monotonic() < deadline
    while not again.router.poll(0):
        link.turn()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    while not isinstance(again.hear(), Ping):
        pass
    again.say(Pong(again.life, 0))
    turn_until(link, "pong")
    message = again.hear()
    while not isinstance(message, Joined):
        message = again.hear()
    assert message == ME
    assert not link.recorder.on


def test_a_collector_that_falls_silent_ends_the_recording(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    link, _ = place.joined()
    link.recorder.on = True
    now = nanoseconds()
    monkeypatch.setattr(link_module, "nanoseconds", lambda: now + 11 * 10**9)
    link.turn()
    assert not link.recorder.on
    assert not link.there


def test_a_collector_that_reads_nothing_holds_nobody_up_and_loses_nothing_that_fits(place: Place) -> None:
    link, collector = place.joined()
    link.recorder.on = True
    sent = 0
    began = time.monotonic()
    for _ in range(3000):
        add(link)
        link.flush()
        sent += 1
    assert time.monotonic() - began < 20
    got = 0
    while got < sent:
        if not collector.router.poll(100):
            link.flush()
            continue
        message = collector.hear()
        if isinstance(message, Spans):
            got += int((message.kind == SpanKind.PLAN).sum())
            assert not message.lost
    assert got == sent


def test_the_load_is_told_with_the_spans(place: Place) -> None:
    link, collector = place.joined(lambda time: Load(time, 1, 2, 3, 4, 5))
    collector.say(Record(True, 0.25))
    turn_until(link, "record")
    time.sleep(0.25)
    link.turn()
    loaded = collector.hear()
    assert isinstance(loaded, Load)
    assert (loaded.running, loaded.settled_tokens) == (1, 5)


def test_garbage_changes_nothing_and_answers_to_others_are_passed_on(place: Place) -> None:
    link, collector = place.joined()
    collector.router.send_multipart((collector.peer, b"garbage"))
    assert link.socket is not None
    assert link.socket.poll(5000)
    assert link.turn() == []
    bins = np.zeros(0, "u1")
    view = View(0, 5, bins, bins, bins, bins, 0.0, 0.0, 0.0, 0, 0, 0, 0)
    collector.say(view)
    assert link.socket.poll(5000)
    (passed,) = link.turn()
    assert isinstance(passed, View)


def test_what_is_left_is_sent_at_the_end(place: Place) -> None:
    link, collector = place.joined()
    link.recorder.on = True
    add(link, 2)
    link.close()
    spans = collector.hear()
    assert isinstance(spans, Spans)
    assert len(spans.kind) == 2


def test_a_host_has_one_name() -> None:
    assert this_host() == this_host() != ""


def test_who_was_forgotten_says_again_who_it_is(place: Place) -> None:
    link, collector = place.joined()
    collector.say(Pong(collector.life, 0))
    turn_until(link, "pong")
    link.recorder.on = True
    assert not collector.router.poll(50), "the collector knows us"
    collector.say(Pong(STRANGER, 0))
    turn_until(link, "pong")
    assert collector.hear() == ME
    assert link.there
    assert not link.recorder.on, "only the collector says when to record"


def test_who_could_not_say_who_it_is_tries_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    collector, link = place.collector(), place.link()
    link.turn()
    collector.hear()
    with monkeypatch.context() as full:
        full.setattr(link_module, "send", lambda *_: False)
        collector.say(Pong(collector.life, 0))
        turn_until(link, "pong")
        assert not link.there
    collector.say(Pong(collector.life, 0))
    turn_until(link, "pong")
    assert collector.hear() == ME


def test_spans_come_with_the_error_of_the_devices_clock(place: Place) -> None:
    link, collector = place.joined()
    link.recorder.on = True
    link.clock_error = 321
    add(link)
    link.flush()
    spans = collector.hear()
    assert isinstance(spans, Spans)
    assert spans.clock_error == 321


def test_sending_is_work_like_any_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    link, collector = place.joined()
    link.recorder.on = True
    clock = iter(range(0, 10**9, WORTH_TELLING_NANOSECONDS + 1))
    monkeypatch.setattr(link_module, "nanoseconds", lambda: next(clock))
    monkeypatch.setattr(recorder_module, "nanoseconds", lambda: next(clock))
    add(link)
    link.flush()
    link.flush()
    plan, sent = collector.hear(), collector.hear()
    assert isinstance(plan, Spans)
    assert isinstance(sent, Spans)
    assert (plan.kind.tolist(), sent.kind.tolist()) == ([SpanKind.PLAN], [SpanKind.FLUSH])
    assert sent.start < sent.end
