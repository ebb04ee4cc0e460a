"""The scheduler core against the real step pipeline on the CPU device, in one process."""

from __future__ import annotations

import math
import select
import time
from pathlib import Path

from gpu_worker.building import build_engine
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.pipeline import StepPipeline
from protocol.identity import new_session
from protocol.messages import Failed, Plan, Result, Submit
from scheduler_proc.core import Scheduler
from tests.core_loop import CLIENT, CoreLoop, Received
from timeline.recorder import Recorder


def poisoned_engine(model: Path, **options: object) -> Engine:
    """An engine whose KV cache holds nothing but NaN until something is written."""
    settings = {"device": "cpu", "dtype": "float32"} | options
    config = EngineConfig(model=str(model), **settings)  # type: ignore[arg-type]
    return build_engine(config, lambda _: None, kv_fill=math.nan)


class RealLoop(CoreLoop):
    """As `CoreLoop`, but plans are launched and answers collected when the device has them."""

    def __init__(self, engine: Engine, credit: int, recorder: Recorder | None = None) -> None:
        self.engine = engine
        self.scheduler = Scheduler(engine.opened(1, new_session()), credit, new_session())
        self.pipeline: StepPipeline = engine.pipeline(credit, recorder or Recorder(capacity=1))
        self.plans: list[Plan] = []
        self.received: dict[int, Received] = {}
        self.now = 0.0

    def plan(self) -> Plan | None:
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.pipeline.launch(plan)
        self.scheduler.check()
        return plan

    def collect(self) -> Result | Failed:
        """The next answer, waited for as the worker process waits."""
        descriptor = self.engine.device.fileno()
        deadline = time.monotonic() + 20.0
        while not self.pipeline.ready():
            if descriptor is not None:
                assert select.select([descriptor], [], [], 20.0)[0], "the device wakes nobody"
                self.engine.device.clear_wakeups()
            assert time.monotonic() < deadline, "a step never ends"
        return self.pipeline.collect()

    def settle(self) -> bool:
        if not len(self.pipeline):
            return False
        assert self.scheduler.settle(self.collect(), self.now)
        self.scheduler.check()
        return True

    def fail(self) -> bool:
        raise NotImplementedError("break the runner instead")


def alone(engine: Engine, ask: Submit) -> list[int]:
    """The tokens of a request that has the machine to itself, one plan at a time."""
    loop = RealLoop(engine, 1)
    loop.submit(ask)
    loop.drain()
    return loop.tokens(ask.request)


__all__ = ["CLIENT", "RealLoop", "alone", "poisoned_engine"]
