"""Steps without a scheduler: plans go to a worker's engine as fast as it takes them, and each step is timed."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from bench.device_time import EVENT_SECONDS
from bench.percentiles import percentiles
from gpu_worker.engine import Engine
from protocol.messages import Plan, Result
from timeline.recorder import Recorder

PLANS_IN_FLIGHT = 2
LONGEST_WAIT_SECONDS = 1.0
NONE = np.zeros(0, np.uint32)

Tables = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]
"""Slots, places in their block tables, and the blocks there."""

NO_TABLES: Tables = (NONE, NONE, NONE)


@dataclass(frozen=True, slots=True)
class Timed:
    """Some steps, float64 seconds [steps]: how long the device computed each, and how long the host was busy with it.

    The host stages, launches and collects a step; building its plan is a scheduler's work, and not counted. `seconds`
    is how long all of them took.
    """

    device_seconds: NDArray[np.float64]
    host_seconds: NDArray[np.float64]
    seconds: float

    @property
    def idle_share(self) -> float:
        """Return the share of the time in which the device computed nothing."""
        return max(0.0, 1.0 - float(self.device_seconds.sum()) / self.seconds)


class StepLoop:
    """An engine that does nothing else; its one pipeline is here."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pipeline = engine.pipeline(PLANS_IN_FLIGHT, Recorder())
        self._step = 0
        self._settled = 0

    def run(self, plans: Iterable[Plan], what: str, warm_up: int = 0) -> Timed:
        """Compute `plans`, whose numbers are filled in here, and time all but the first `warm_up`.

        Raises `BenchmarkError`, which says `what` was computed, if a step fails.
        """
        waiting = iter(plans)
        device: list[float] = []
        launched: list[float] = []
        collected: list[float] = []
        began = time.perf_counter()
        plan = next(waiting, None)
        while plan is not None or len(device) < len(launched):
            while self._pipeline.room and plan is not None:
                launched.append(self._launch(plan))
                plan = next(waiting, None)
            self._wait()
            busy = self._pipeline.busy_seconds
            collected.append(self._collect(what))
            device.append(self._pipeline.busy_seconds - busy)
            if len(device) == warm_up:
                began = time.perf_counter()
        seconds = time.perf_counter() - began
        host = np.array(launched) + np.array(collected)
        return Timed(np.array(device[warm_up:]), host[warm_up:], seconds)

    def _launch(self, plan: Plan) -> float:
        self._step += 1
        own = replace(plan, step=self._step, settled=self._settled)
        began = time.perf_counter()
        self._pipeline.launch(own)
        return time.perf_counter() - began

    def _collect(self, what: str) -> float:
        began = time.perf_counter()
        answer = self._pipeline.collect()
        seconds = time.perf_counter() - began
        if not isinstance(answer, Result):
            raise BenchmarkError(f"{what}: {answer.error}")
        self._settled = answer.step
        return seconds

    def _wait(self) -> None:
        """Wait for the oldest plan as a worker does."""
        device = self.engine.device
        wakeup = device.fileno()
        while not self._pipeline.ready():
            if wakeup is None:
                time.sleep(EVENT_SECONDS)
            else:
                select.select([wakeup], [], [], LONGEST_WAIT_SECONDS)
                device.clear_wakeups()


def greedy_plan(
    slot: NDArray[np.uint32],
    position: NDArray[np.uint32],
    count: NDArray[np.uint32],
    flags: NDArray[np.uint8],
    token: NDArray[np.uint32],
    tables: Tables,
    begin: NDArray[np.uint32],
) -> Plan:
    """Return a plan of these rows; the slots `begin` begin with it, and take the likeliest tokens."""
    none, numbers = np.zeros_like(begin), np.zeros(len(begin), np.float32)
    return Plan(
        session=1,
        step=1,
        settled=0,
        slot=slot,
        position=position,
        count=count,
        flags=flags,
        token=token,
        table_slot=tables[0],
        table_index=tables[1],
        table_block=tables[2],
        begin_slot=begin,
        temperature=numbers,
        top_k=none,
        top_p=np.ones_like(numbers),
        min_p=numbers,
        seed=np.zeros(len(begin), np.uint64),
    )


def microseconds(seconds: NDArray[np.float64]) -> dict[str, float]:
    """Return p50 and p99 in microseconds, as reports have them."""
    return percentiles(1e6 * seconds)
