"""The processes that load a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from bench.client_processes import ClientProcesses
from bench.serve_client import Errand, clock
from bench.serve_course import Course

HEAD_START_SECONDS = 0.1
"""How long before the schedule's beginning clients are told when that is."""


class Done(NamedTuple):
    """What a client has to say: what became of its requests, and which share of a core it needed."""

    courses: list[Course]
    core_share: float


class ServeClients(ClientProcesses):
    """One process for each errand."""

    def __init__(self, errands: Sequence[Errand]) -> None:
        """Start them, and wait until each has warmed up; raises `BenchmarkError`."""
        super().__init__("bench.serve_client", len(errands))
        try:
            self.tell([errand.to_json() for errand in errands])
            self.answers("warming up")
        except BaseException:
            self.close()
            raise

    def run(self) -> list[Done]:
        """Have them do their errands, all by one clock."""
        begin = clock() + HEAD_START_SECONDS
        self.tell([json.dumps({"begin": begin})] * len(self))
        return [
            Done([Course(**each) for each in answer["courses"]], answer["cpu_seconds"] / answer["seconds"])
            for answer in self.answers("a client")
        ]
