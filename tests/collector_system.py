"""A collector for tests that has no sockets and whose clock stands still unless somebody waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from protocol.messages import Joined, Load, Message, SpanKind, Spans, StopTimeline, TimelineState
from timeline.collector import CLOSING_SECONDS, Collector

HERE, ELSEWHERE = "this host", "another host"
SECOND = 1_000_000_000
CLIENT = b"client"


def spans(*intervals: tuple[SpanKind, int, int], step: int = 1, lost: int = 0, error: int = 0) -> Spans:
    kind, start, end = (list(column) for column in zip(*intervals, strict=True))
    numbers = np.full(len(kind), step % 2**32, "<u4")
    return Spans(
        np.array(kind, "u1"), np.array(start, "<u8"), np.array(end, "<u8"), np.full(len(kind), step, "<u8"),
        numbers * 7, numbers, numbers, numbers * 0, numbers * 0, lost, error,
    )  # fmt: skip


def load(time: int) -> Load:
    return Load(time, running=3, waiting=2, blocks_used=10, blocks=16, settled_tokens=100)


class System:
    """A collector with time, and what it has said to each peer."""

    def __init__(self, directory: Path, most_bytes: int = 2**20) -> None:
        self.directory = directory
        self.collector = Collector(HERE, directory, most_bytes)
        self.clock = 100 * SECOND
        self.said: dict[bytes, list[Message]] = {}

    def hear(self, peer: bytes, message: Message) -> list[Message]:
        """Return what the peer is told, then or because of it."""
        return self._keep(self.collector.hear(peer, message, self.clock)).get(peer, [])

    def wait(self, seconds: float) -> dict[bytes, list[Message]]:
        self.clock += int(seconds * SECOND)
        return self._keep(self.collector.beat(self.clock))

    def silence(self) -> None:
        """Let so much time pass, beat by beat, that who says nothing is gone."""
        for _ in range(44):
            self.wait(0.25)

    def _keep(self, said: list[tuple[bytes, Message]]) -> dict[bytes, list[Message]]:
        self.said = {peer: [message for to, message in said if to == peer] for peer, _ in said}
        return self.said

    def join(self, name: str, role: str = "scheduler", host: str = HERE, device: str = "") -> list[Message]:
        return self.hear(name.encode(), Joined(name, role, 1, host, device))

    def ask(self, message: Message) -> TimelineState:
        (state,) = [said for said in self.hear(CLIENT, message) if isinstance(said, TimelineState)]
        return state

    def events(self, file: str = "a.json") -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads((self.directory / file).read_text())["traceEvents"]
        return events

    def stop(self) -> TimelineState:
        """Stop the recording; no member has more to send."""
        told = self.hear(CLIENT, StopTimeline(9)) or self.wait(CLOSING_SECONDS)[CLIENT]
        (state,) = [said for said in told if isinstance(said, TimelineState)]
        return state
