"""Stepahead without text: a worker, a scheduler and one client that has token ids, each in a process of its own.

The worker is loaded once. Each run has a scheduler of its own before it, so that runs with and without overlap compute
with the same weights in the same memory; and each is recorded, from before its first step to behind its last.

    worker ◄── scheduler, for one run ◄── Bare.run: all requests at once, every delta is counted
       └──────────────┴──► collector: when the device computed
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from bench.contestant import BenchmarkError
from bench.step_times import StepTimes, from_timeline
from bench.thin import Answered, ThinClient
from bench.workload import Workload
from gpu_worker.config import EngineConfig, WorkerConfig
from protocol.endpoints import PrivateDirectory
from protocol.messages import StartTimeline, StopTimeline, TimelineState
from protocol.options import to_arguments
from scheduler_proc.config import SchedulerConfig, SchedulingConfig
from stepahead.family import Child, Family, StartError
from stepahead.progress import Progress
from timeline.ask import ask
from timeline.config import CollectorConfig, TimelineConfig
from timeline.errors import TraceError

START_SECONDS = 900.0
END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run: what the client saw of it, and what the device did."""

    answered: Answered
    steps: StepTimes
    timeline: Path


class Bare:
    """A worker and a timeline's collector, from construction to `close`."""

    def __init__(self, engine: EngineConfig, timelines: Path | None, tell: Progress) -> None:
        """Load what `engine` describes, and wait until it is ready; raises `BenchmarkError` with what is wrong.

        Recordings are put into `timelines`; if that is None, they are gone after `close`.
        """
        self._tell = tell
        self._directory = PrivateDirectory()
        self._recordings = Path(self._directory.path) if timelines is None else timelines
        self._worker = self._directory.address("worker")
        self._collector = self._directory.address("timeline")
        self._runs = 0
        self._family = Family()
        try:
            self._start_all(engine)
        except BaseException:
            self.close()
            raise

    def _start_all(self, engine: EngineConfig) -> None:
        collect = CollectorConfig(bind=self._collector), TimelineConfig(timeline_dir=str(self._recordings))
        self._start("timeline", "timeline collect", to_arguments(*collect))
        worker = WorkerConfig(bind=self._worker, timeline=self._collector)
        self._start("worker", "gpu_worker", to_arguments(worker, engine))
        self._wait()

    def run(self, name: str, workload: Workload, scheduling: SchedulingConfig) -> Recorded:
        """Do a workload with a new scheduler; raises `BenchmarkError` if an answer has not the length it should have.

        The recording is called by `name` and a number.
        """
        self._runs += 1
        address = self._directory.address(f"scheduler-{self._runs}")
        config = SchedulerConfig(bind=address, worker=(self._worker,), timeline=self._collector)
        scheduler = self._start("scheduler", "scheduler_proc", to_arguments(config, scheduling))
        try:
            self._wait()
            with ThinClient(address) as client:
                file = self._said(StartTimeline(1, f"{name}-{self._runs}.json.gz")).file
                answered = client.run(workload)
                state = self._said(StopTimeline(2))
        finally:
            self._end(scheduler)
        if state.problem:
            raise BenchmarkError(state.problem)
        return Recorded(answered, from_timeline(Path(file)), Path(file))

    def _said(self, question: StartTimeline | StopTimeline) -> TimelineState:
        try:
            return ask(self._collector, question)
        except TraceError as error:
            raise BenchmarkError(str(error)) from None

    def _start(self, name: str, module: str, arguments: list[str]) -> Child:
        try:
            self._family.start(name, module, arguments)
        except StartError as error:
            raise BenchmarkError(str(error)) from None
        return self._family.children[-1]

    def _wait(self) -> None:
        """Wait until all that was started is ready."""
        deadline = time.monotonic() + START_SECONDS
        while not self._family.ready:
            gone = self._family.listen(max(0.0, deadline - time.monotonic()), self._tell)
            if gone is not None:
                raise BenchmarkError(f"{gone.name}: {gone.how_it_ended()}")
            if time.monotonic() > deadline:
                raise BenchmarkError(f"not ready within {START_SECONDS:g} s")

    def _end(self, child: Child) -> None:
        """End one process, which gives the worker back."""
        child.ask_to_end()
        if not child.ended(END_SECONDS):
            child.process.kill()
            child.process.wait()
        with contextlib.suppress(KeyError):  # it is gone by itself, and was heard to be
            self._family.selector.unregister(child.pipes.status)
        child.pipes.close()
        self._family.children.remove(child)

    def close(self) -> None:
        """End all processes."""
        self._family.stop()
        self._directory.remove()
