"""A system while its timeline is recorded."""

from __future__ import annotations

from pathlib import Path

from bench.contestant import BenchmarkError, Run
from bench.served import Served
from bench.workload import Workload
from protocol.messages import StartTimeline, StopTimeline
from timeline.ask import ask
from timeline.errors import TraceError


class Recorded:
    """The same processes as `served`, which is what they are compared with: only recording differs."""

    def __init__(self, served: Served) -> None:
        """Record while `served` runs; whoever made it closes it."""
        self.name = f"{served.name}, recording"
        self._served = served

    def run(self, workload: Workload) -> Run:
        """As `Served.run`, between the start and the stop of a recording."""
        try:
            ask(self._served.address, StartTimeline(1))
            run = self._served.run(workload)
            state = ask(self._served.address, StopTimeline(2))
        except TraceError as error:
            raise BenchmarkError(f"{self.name}: {error}") from None
        if state.problem or not state.spans:
            raise BenchmarkError(f"{self.name}: {state.problem or 'nothing was recorded'}")
        Path(state.file).unlink()
        return run

    def close(self) -> None:
        """Do nothing."""
