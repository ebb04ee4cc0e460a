"""The real scheduler core around devices that only take time: hours of serving in seconds, on any number of GPUs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import isnan

import numpy as np
from numpy.typing import NDArray

from bench.device_model import DeviceModel
from bench.workload import greedy
from protocol.messages import Deltas, Finish, Opened, Result, RowFlag
from scheduler_proc.core import Scheduler
from scheduler_proc.policy import FIRST_COME, Policy

CLIENT = 1
TOKEN = 7
"""What is sampled; it ends nothing."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, in seconds, its prompt, how many tokens it is to get, how urgent it is, whose it is."""

    at: float
    prompt: NDArray[np.uint32]
    output_tokens: int
    priority: int = 0
    user: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What the CPU's part costs, in seconds: settling and planning a step, and a message's way to the other process."""

    think: float
    wire: float


@dataclass(slots=True)
class Outcome:
    """What came of it. All times are in simulated seconds."""

    seconds: float = 0.0  # from the first arrival to the last token
    busy: float = 0.0  # of all devices
    idle: float = 0.0  # of all devices, while there was something to do for them
    tokens: int = 0
    ttft: dict[int, list[float]] = field(default_factory=dict)  # of the requests that got a token, by priority
    gaps: list[NDArray[np.float64]] = field(default_factory=list)  # between tokens of a request
    refused: int = 0
    steps: int = 0
    rows: int = 0
    wasted_rows: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class _Worker:
    scheduler: Scheduler
    device_free: float = 0.0  # when it has computed all that it was sent
    work_since: float = 0.0  # since when there has been something to do


class Simulation:
    """Workers of one kind, whose schedulers share one process; a request goes to the one that owes the fewest tokens.

    arrival ─► submit ─► plan ─think, wire─► device, one step after the other ─wire─► settle ─► plan …
    """

    def __init__(
        self,
        workers: int,
        worker: Opened,
        credit: int,
        device: DeviceModel,
        host: Host,
        policy: Policy = FIRST_COME,
        max_prefill_tokens: int | None = None,
    ) -> None:
        """Begin with nothing to do; the last two are as in `Scheduler`. Raises `CapacityError`."""
        self._workers = [
            _Worker(Scheduler(worker, credit, session=1, policy=policy, max_prefill_tokens=max_prefill_tokens))
            for _ in range(workers)
        ]
        self._policy = policy
        self._device, self._host = device, host
        self._host_free = 0.0
        self._events: list[tuple[float, int, int, Result | None]] = []  # time, order, worker or arrival, answer
        self._order = count()
        self._outcome = Outcome()

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Serve all of `arrivals`, which are in order, to their ends."""
        self._arrivals = arrivals
        self._first = np.full(len(arrivals), np.nan)
        self._newest = np.full(len(arrivals), np.nan)
        for number, arrival in enumerate(arrivals):
            self._events.append((arrival.at, next(self._order), number, None))
        now = arrivals[0].at
        while self._events:
            now, _, number, answer = heapq.heappop(self._events)
            if answer is None:
                self._arrive(number, now)
            else:
                self._settle(number, answer, now)
        outcome = self._outcome
        outcome.seconds = now - arrivals[0].at
        for arrival, first in zip(arrivals, self._first.tolist(), strict=True):
            if not isnan(first):
                outcome.ttft.setdefault(arrival.priority, []).append(first - arrival.at)
        for worker in self._workers:
            counters = worker.scheduler.counters
            outcome.steps += counters.steps
            outcome.rows += counters.rows
            outcome.wasted_rows += counters.wasted_rows
            outcome.preemptions += counters.preemptions
        return outcome

    def _arrive(self, request: int, now: float) -> None:
        arrival = self._arrivals[request]
        number = min(range(len(self._workers)), key=lambda each: self._workers[each].scheduler.outstanding_tokens)
        worker = self._workers[number]
        if not worker.scheduler.running + worker.scheduler.waiting:
            worker.work_since = now
        ask = replace(greedy(request, arrival.prompt, arrival.output_tokens), user=arrival.user)
        if not self._policy.refusal(urgent := replace(ask, priority=arrival.priority)):
            ask = urgent
        worker.scheduler.submit(CLIENT, ask, now)
        self._deliver(worker, now)
        self._plan(number, now)

    def _settle(self, number: int, answer: Result, now: float) -> None:
        worker = self._workers[number]
        assert worker.scheduler.settle(answer, now)
        self._plan(number, now)
        self._deliver(worker, now)

    def _plan(self, number: int, now: float) -> None:
        worker, outcome = self._workers[number], self._outcome
        while (plan := worker.scheduler.plan(max(now, self._host_free))) is not None:
            self._host_free = max(now, self._host_free) + self._host.think
            begin = max(self._host_free + self._host.wire, worker.device_free)
            seconds = self._device.seconds(plan)
            outcome.idle += begin - max(worker.device_free, worker.work_since)
            outcome.busy += seconds
            worker.device_free = begin + seconds
            samples = int(np.count_nonzero(plan.flags & np.uint8(RowFlag.SAMPLE)))
            answer = Result(plan.session, plan.step, np.full(samples, TOKEN, np.uint32), np.zeros(samples, np.uint8))
            heapq.heappush(self._events, (worker.device_free + self._host.wire, next(self._order), number, answer))

    def _deliver(self, worker: _Worker, now: float) -> None:
        while told := worker.scheduler.take_deltas():
            for _, deltas in told:
                self._note(deltas, now)

    def _note(self, deltas: Deltas, now: float) -> None:
        outcome = self._outcome
        outcome.refused += int(np.count_nonzero(deltas.finish == Finish.REFUSED))
        outcome.tokens += len(deltas.token)
        given = deltas.request[deltas.count > 0].astype(np.int64)
        later = given[~np.isnan(self._newest[given])]
        outcome.gaps.append(now - self._newest[later])
        self._newest[given] = now
        self._first[given] = np.where(np.isnan(self._first[given]), now, self._first[given])
