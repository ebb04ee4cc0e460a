"""From configs to processes that serve: started, waited for, and watched."""

from __future__ import annotations

import time
from math import inf
from typing import Protocol

from frontend.config import FrontendConfig, ServeConfig, TextConfig
from gpu_worker.config import EngineConfig, WorkerConfig
from protocol.endpoints import PrivateDirectory
from protocol.logs import TEXT, LogConfig
from protocol.options import to_arguments
from scheduler_proc.config import SchedulerConfig, SchedulingConfig
from stepahead.family import Family, StartError
from stepahead.frontends import start_frontends
from stepahead.launch_config import LaunchConfig
from stepahead.progress import Progress
from timeline.config import CollectorConfig, TimelineConfig


class Stop(Protocol):
    """What says that all is to end; a family's selector hears when it does."""

    @property
    def is_set(self) -> bool:
        """Whether it has said so."""


class Task(Protocol):
    """What is done beside; a family's selector hears when it is over."""

    def is_alive(self) -> bool:
        """Whether it is under way."""


def start_all(
    family: Family,
    launch: LaunchConfig,
    serve: ServeConfig,
    engine: EngineConfig,
    scheduling: SchedulingConfig,
    text: TextConfig,
    timeline: TimelineConfig,
    run: PrivateDirectory,
    for_clients: str,
    logs: LogConfig = TEXT,
) -> None:
    """Start every process; they find each other through sockets in `run`, clients find them at `for_clients`."""
    spans = run.address("timeline")
    # First to start, so that nobody looks for it in vain and later than the first step finds it; and last to end: what
    # all others have recorded up to their ends, it writes.
    family.start("timeline", "timeline collect", to_arguments(CollectorConfig(bind=spans), timeline, logs), vital=False)
    workers = [run.address(f"worker-{number}") for number in range(launch.workers)]
    schedulers = [run.address(f"scheduler-{number}") for number in range(launch.schedulers)]
    for number, address in enumerate(workers):
        name = _name("worker", number, launch.workers)
        config = WorkerConfig(bind=address, timeline=spans, name=name)
        family.start(name, "gpu_worker", to_arguments(config, engine, logs))
    for number, address in enumerate(schedulers):
        name = _name("scheduler", number, launch.schedulers)
        own = tuple(workers[number :: launch.schedulers])
        scheduler = SchedulerConfig(bind=address, worker=own, timeline=spans, name=name)
        family.start(name, "scheduler_proc", to_arguments(scheduler, scheduling, logs))
    frontend = FrontendConfig(
        scheduler=tuple(schedulers), bind=for_clients, model=engine.model, seed=engine.seed, timeline=spans
    )
    start_frontends(family, launch.frontends, frontend, text, serve, run, logs)
    family.children.append(family.children.pop(0))  # the timeline's collector is last to end


def _name(what: str, number: int, total: int) -> str:
    return what if total == 1 else f"{what} {number}"


def wait_until_ready(family: Family, stop: Stop, seconds: float, tell: Progress) -> bool:
    """Return True once all serve, False if told to stop before. Raises `StartError` if one can't, or time is up."""
    deadline = time.monotonic() + seconds
    while not family.ready:
        if stop.is_set:
            return False
        left = deadline - time.monotonic()
        if left <= 0:
            late = ", ".join(child.name for child in family.children if not child.ready)
            raise StartError(f"not ready within {seconds:g} s: {late}")
        if (gone := family.listen(left, tell)) is not None:
            raise StartError(f"{gone.name}: {gone.how_it_ended()}", 2 if gone.failure else 1)
    return True


def watch(family: Family, stop: Stop, tell: Progress, until: Task | None = None) -> None:
    """Return when told to stop, or `until` is done; raises `StartError` if a child is gone before."""
    while not stop.is_set and (until is None or until.is_alive()):
        if any(child.drained for child in family.children):
            raise StartError("a frontend was told to end; everything is stopped")
        gone = family.listen(1.0 if until is not None else inf, tell)
        if gone is not None and not stop.is_set:
            raise StartError(f"{gone.name} is gone: {gone.how_it_ended()}; everything is stopped")
