"""When requests have to be over."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf

from protocol.messages import Finish
from scheduler_proc.request import Request

SLACK = 64
"""So many entries of ended requests are never worth a clean-up."""


class Deadlines:
    """The deadlines of accepted requests, nearest first. Requests without one cost nothing."""

    def __init__(self) -> None:
        """Begin empty."""
        self._heap: list[tuple[float, int, Request]] = []
        self._live = 0

    def add(self, request: Request) -> None:
        """Remember a request's deadline, if it has one."""
        if request.deadline < inf:
            heapq.heappush(self._heap, (request.deadline, request.order, request))
            self._live += 1

    def ended(self, request: Request) -> None:
        """Note that a request has ended: its `finish` says so already."""
        if request.deadline < inf:
            self._live -= 1
            if len(self._heap) > 2 * self._live + SLACK:
                self._heap = [entry for entry in self._heap if entry[2].finish is Finish.RUNNING]
                heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._live = 0

    @property
    def next(self) -> float:
        """The nearest deadline, inf for none; it may be that of a request that has ended."""
        return self._heap[0][0] if self._heap else inf

    def passed(self, now: float) -> Iterator[Request]:
        """Take off and yield the requests whose deadline has come."""
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if request.finish is Finish.RUNNING:
                yield request

    def check(self) -> None:
        """Assert what holds between any two verbs."""
        live = sum(entry[2].finish is Finish.RUNNING for entry in self._heap)
        assert live == self._live, f"{live} deadlines are waited for, {self._live} are counted"
        assert len(self._heap) <= 2 * self._live + SLACK + 1, "ended requests pile up"
