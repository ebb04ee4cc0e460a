"""Requests that wait for a slot, in the order in which they will get one."""

from __future__ import annotations

import heapq

from protocol.messages import Finish
from scheduler_proc.request import Request

SLACK = 64
"""So many ended entries are never worth a clean-up."""


class WaitingQueue:
    """By rank, and equal ranks by arrival: a preempted request comes back at its old place.

    What a request's rank is, its policy has said when it was accepted. A request that ends while it waits stays in the
    heap until it surfaces, or until those that ended outnumber those that wait.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._heap: list[tuple[float, int, Request]] = []
        self._waiting = 0

    def __len__(self) -> int:
        """How many requests wait."""
        return self._waiting

    def push(self, request: Request) -> None:
        """Let a request wait."""
        heapq.heappush(self._heap, (request.rank, request.order, request))
        self._waiting += 1

    def peek(self) -> Request | None:
        """Return the request whose turn is next, or None."""
        while self._heap and self._heap[0][2].finish is not Finish.RUNNING:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Request:
        """Take the request whose turn is next; there must be one."""
        request = self.peek()
        assert request is not None
        heapq.heappop(self._heap)
        self._waiting -= 1
        return request

    def ended(self, request: Request) -> None:
        """Note that a waiting request has ended: its `finish` says so already."""
        assert request.finish is not Finish.RUNNING
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].finish is Finish.RUNNING]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget everyone."""
        self._heap.clear()
        self._waiting = 0

    def requests(self) -> list[Request]:
        """Return those that wait, in no order."""
        return [request for _, _, request in self._heap if request.finish is Finish.RUNNING]

    def check(self) -> None:
        """Assert what holds of the queue between any two verbs."""
        waiting = self.requests()
        assert len(waiting) == self._waiting, f"{len(waiting)} wait, {self._waiting} are counted"
        assert len(self._heap) <= 2 * self._waiting + SLACK + 1, "ended requests pile up"
        assert all(request.slot < 0 for request in waiting), "a request waits and runs"
