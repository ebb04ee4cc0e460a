"""Gather what workers, schedulers and frontends record: the collector's process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import zmq

from protocol.codec import decode
from protocol.descriptors import allow_many_descriptors
from protocol.drop_log import DropLog
from protocol.errors import ProtocolError
from protocol.lifeline import Lifeline
from protocol.logs import LogConfig, set_up_logs
from protocol.messages import (
    AskTimeline,
    ClockTold,
    Joined,
    Load,
    Ping,
    Pong,
    Spans,
    StartTimeline,
    StopTimeline,
    Watch,
)
from protocol.options import parse_options
from protocol.sockets import PULSE_SECONDS, PeerGoneError, bind_router, receive_from_peer, send_to_peer
from protocol.stop_signal import StopSignal
from timeline.collector import CLOSING_SECONDS, Collector, Said
from timeline.config import CollectorConfig, TimelineConfig
from timeline.errors import TraceError
from timeline.link import this_host
from timeline.recorder import nanoseconds

INTAKE_PER_TURN = 256
"""Messages taken before time passes for the collector."""

FAREWELL_MILLISECONDS = 300
"""When told to end, it goes on for as long as something comes at such intervals."""

_log = logging.getLogger("stepahead.timeline")


class CollectorProcess:
    """Sockets and a clock around the collector."""

    def __init__(self, collector: Collector, router: zmq.Socket[bytes], stop: StopSignal) -> None:
        """Serve `collector` on a bound ROUTER."""
        self._collector = collector
        self._router = router
        self._stop = stop
        self._dropped = DropLog(_log, "a message")
        self._problem = ""
        self._poller = zmq.Poller()
        for waited_for in (stop, router):
            self._poller.register(waited_for, zmq.POLLIN)

    def run(self) -> None:
        """Gather until told to stop, and then what has come by then."""
        while not self._stop.is_set:
            self._poller.poll(int(1000 * PULSE_SECONDS))
            for _ in range(INTAKE_PER_TURN):
                if not self._hear_next():
                    break
            self._say(self._collector.beat(nanoseconds()))
            problem, self._problem = self._problem, self._collector.problem
            if self._problem not in ("", problem):
                _log.error("%s", self._problem)
        # Others may be ending at the same time, and what they did last is still on its way; somebody may never end.
        give_up = nanoseconds() + int(1e9 * CLOSING_SECONDS)
        while self._router.poll(FAREWELL_MILLISECONDS) and nanoseconds() < give_up:
            self._hear_next()
        self._collector.close(nanoseconds())

    def _hear_next(self) -> bool:
        received = receive_from_peer(self._router)
        if received is None:
            return False
        try:
            message = decode(
                received.frame,
                Spans, Load, Ping, Pong, Joined, ClockTold, StartTimeline, StopTimeline, AskTimeline, Watch,
            )  # fmt: skip
        except ProtocolError as error:
            self._dropped.add(error)
        else:
            self._say(self._collector.hear(received.peer, message, nanoseconds()))
        return True

    def _say(self, said: list[Said]) -> None:
        for peer, message in said:
            # One that reads nothing misses it: it is asked again. One that is gone may have sent us more than we have
            # read, so it stays known until it has been silent for long.
            with contextlib.suppress(PeerGoneError):
                send_to_peer(self._router, peer, message)


def main(arguments: Sequence[str]) -> int:
    """Run the process; return its exit code: 0 after a signal, 2 for a mistake of the user."""
    allow_many_descriptors()
    config, timeline, logs = parse_options(
        "python -m timeline collect",
        "Gather what workers, schedulers and frontends record, write it to files, and show it to frontends.",
        CollectorConfig,
        TimelineConfig,
        LogConfig,
        arguments=arguments,
    )
    set_up_logs("timeline", logs)
    lifeline = Lifeline("timeline", config.lifeline, logs)
    stop = StopSignal()
    directory = Path(timeline.timeline_dir).absolute()  # it is told to those who stand elsewhere
    collector = Collector(this_host(), directory, int(timeline.timeline_max_mib * 2**20))
    with zmq.Context() as context:
        try:
            router = bind_router(context, config.bind)
            if timeline.timeline is not None:
                timeline.check()
                collector.start(Path(timeline.timeline).absolute(), nanoseconds())
        except (ProtocolError, TraceError) as error:
            lifeline.failed(str(error))
            return 2
        except OSError as error:
            lifeline.failed(f"--timeline {timeline.timeline}: {error.strerror}")
            return 2
        with router:
            lifeline.ready()
            CollectorProcess(collector, router, stop).run()
    return 0
