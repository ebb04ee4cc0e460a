"""The collector's process: what has come by its end is written, also of those who are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol.messages import Joined, Ping, SpanKind
from protocol.sockets import bind_router, connect_dealer, send
from tests.collector_system import HERE, load, spans
from tests.stub_stop import Stop
from timeline.collect import CollectorProcess
from timeline.collector import Collector
from timeline.recorder import nanoseconds
from timeline.trace import read_trace


class Place:
    """A collector's socket, and one that speaks to it."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = bind_router(self.context, address)
        self.dealer = connect_dealer(self.context, address)
        self.stop = Stop()
        self.stop.set()

    def run(self, collector: Collector) -> None:
        CollectorProcess(collector, self.router, self.stop).run()  # type: ignore[arg-type]

    def close(self) -> None:
        self.dealer.close(0)
        self.router.close(0)
        self.context.term()
        self.stop.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(f"ipc://{tmp_path / 'collector'}")
    yield made
    made.close()


def test_what_has_come_by_the_end_is_written_and_the_recording_closed(place: Place, tmp_path: Path) -> None:
    collector = Collector(HERE, tmp_path, 2**20)
    file = tmp_path / "a.json"
    collector.start(file, nanoseconds())
    assert send(place.dealer, Joined("scheduler", "scheduler", 1, HERE))
    at = nanoseconds()
    assert send(place.dealer, spans((SpanKind.PLAN, at, at)))
    assert place.router.poll(5000)
    time.sleep(0.1)  # the other one is on its way
    place.run(collector)
    assert sum(len(lane) for lane in read_trace(file).lanes) == 1
    collector.start(tmp_path / "b.json", nanoseconds())  # the other one is closed
    collector.close(nanoseconds())


def test_what_somebody_sent_before_it_ended_is_written_though_it_cannot_be_answered(
    place: Place, tmp_path: Path
) -> None:
    collector = Collector(HERE, tmp_path, 2**20)
    file = tmp_path / "a.json"
    collector.start(file, nanoseconds())
    at = nanoseconds()
    told = Joined("scheduler", "scheduler", 1, HERE), Ping(), spans((SpanKind.PLAN, at, at)), Ping(), load(at)
    for message in told:
        assert send(place.dealer, message)
    assert place.router.poll(5000)
    place.dealer.close(300)
    time.sleep(0.2)  # until the connection is over
    place.run(collector)
    assert sum(len(lane) for lane in read_trace(file).lanes) == 1
