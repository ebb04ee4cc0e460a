"""Stepahead piece by piece: a worker, a scheduler, and clients with or without a frontend, in processes of their own.

The worker is loaded once. Each run has a scheduler of its own before it, so that runs with and without overlap compute
with the same weights in the same memory; and each is recorded, from before its first step to behind its last.

    worker ◄── scheduler, for one run ◄─┬─ run, arrive: one client that has token ids, in this process
       │              │                 └─ frontend ◄── stream: several clients, every token as text
       └──────────────┴──► collector: when the device computed
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from bench.frontends import end, frontends, wait_until_ready
from bench.moments import Moments
from bench.step_times import DeviceTime, StepTimes, device_time, from_timeline
from bench.streaming_clients import StreamingClients
from bench.thin import Answered, ThinClient
from bench.workload import Workload
from frontend.config import FrontendConfig
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

_T = TypeVar("_T")

HEARSAY_SECONDS = 0.2
"""How long after us a worker may hear that it is to record. What it has not recorded by then is in no idle share."""


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
        self._model = engine.model
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
        wait_until_ready(self._family, self._tell)

    def run(self, name: str, scheduling: SchedulingConfig, workload: Workload) -> tuple[Answered, StepTimes]:
        """Do a workload with a new scheduler; return what the client saw, and what the device did.

        The recording is called by `name` and a number. Raises `BenchmarkError` if an answer has the wrong length.
        """
        with self._scheduler(scheduling) as address, ThinClient(address) as client:
            answered, file = self._recorded(name, lambda: client.run(workload))
        return answered, from_timeline(file)

    def arrive(
        self, name: str, scheduling: SchedulingConfig, workload: Workload, at: NDArray[np.float64]
    ) -> tuple[Moments, DeviceTime]:
        """As `run`, but each request comes when it is due: `at` seconds from the beginning, float64, in order."""
        with self._scheduler(scheduling) as address, ThinClient(address) as client:
            moments, file = self._recorded(name, lambda: client.arrive(workload, at))
        return moments, device_time(file)

    def stream(
        self, name: str, scheduling: SchedulingConfig, workload: Workload, clients: int, frontends: int, *, http: bool
    ) -> tuple[Answered, StepTimes]:
        """As `run`, but with new `frontends`, too, and every token streamed as text to `clients` processes."""
        with (
            self._scheduler(scheduling) as scheduler,
            self._frontends(scheduler, frontends, http=http) as where,
            StreamingClients(where, clients) as readers,
        ):
            answered, file = self._recorded(name, lambda: readers.run(workload))
        return answered, from_timeline(file)

    @contextlib.contextmanager
    def _scheduler(self, scheduling: SchedulingConfig) -> Iterator[str]:
        """Yield the address of a scheduler that has the worker until it is left."""
        self._runs += 1
        address = self._directory.address(f"scheduler-{self._runs}")
        config = SchedulerConfig(bind=address, worker=(self._worker,), timeline=self._collector)
        with self._for_now("scheduler", "scheduler_proc", to_arguments(config, scheduling)):
            yield address

    @contextlib.contextmanager
    def _frontends(self, scheduler: str, count: int, *, http: bool) -> Iterator[str]:
        """Yield where clients find so many frontends."""
        address = self._directory.address(f"clients-{self._runs}")
        config = FrontendConfig(scheduler=(scheduler,), bind=address, model=self._model, timeline=self._collector)
        with frontends(self._family, count, config, self._directory, self._tell, http=http) as there:
            yield there.where

    @contextlib.contextmanager
    def _for_now(self, name: str, module: str, arguments: Sequence[str]) -> Iterator[None]:
        child = self._start(name, module, arguments)
        try:
            wait_until_ready(self._family, self._tell)
            yield
        finally:
            end(self._family, child)

    def _recorded(self, name: str, work: Callable[[], _T]) -> tuple[_T, Path]:
        """Return what `work` returns, and the recording of the time that it took."""
        file = self._said(StartTimeline(1, f"{name}-{self._runs}.json.gz")).file
        time.sleep(HEARSAY_SECONDS)
        result = work()
        state = self._said(StopTimeline(2))
        if state.problem:
            raise BenchmarkError(state.problem)
        return result, Path(file)

    def _said(self, question: StartTimeline | StopTimeline) -> TimelineState:
        try:
            return ask(self._collector, question)
        except TraceError as error:
            raise BenchmarkError(str(error)) from None

    def _start(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        try:
            return self._family.start(name, module, arguments)
        except StartError as error:
            raise BenchmarkError(str(error)) from None

    def close(self) -> None:
        """End all processes."""
        self._family.stop()
        self._directory.remove()
