"""Drives a fleet of schedulers against stub models, one for each worker, in one process and without time."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import replace
from typing import Any

from protocol.identity import new_session
from protocol.messages import Failed, Finish, Opened, Plan, Result, Submit
from scheduler_proc.fleet import Fleet
from tests.core_loop import CLIENT, CoreLoop, Received, submit
from tests.stub_model import VOCAB, NextToken, StubModel, hashed, opened


class FleetLoop(CoreLoop):
    """A fleet with stub models for its workers; CLIENT's and another client's deltas are taken in."""

    def __init__(
        self, worker: Opened | None = None, credit: int = 2, next_token: NextToken = hashed, **rules: Any
    ) -> None:
        self.fleet = Fleet(credit, new_session(), **rules)
        self.next_token = next_token
        self.worker = opened() if worker is None else worker
        self.models: dict[int, StubModel] = {}
        self.flying: dict[int, deque[tuple[Plan, Result]]] = {}
        self.received: dict[int, Received] = {}
        self.planned: dict[int, int] = {}
        self.events = 0  # after each of which the fleet was checked
        self.now = 0.0

    def check(self) -> None:
        self.events += 1
        self.fleet.check()

    def open(self, number: int, **changes: int) -> None:
        worker = replace(self.worker, session=new_session(), **changes)  # type: ignore[arg-type]
        self.fleet.worker_opened(number, worker, self.now)
        self.models[number] = StubModel(worker, self.next_token)
        self.flying[number] = deque()
        self.check()

    def lose(self, number: int, *, died: bool = False) -> None:
        self.fleet.worker_lost(number, self.now, died=died)
        self.models.pop(number, None)
        self.check()

    def plan_of(self, number: int) -> bool:
        plan = self.fleet.plan(number, self.now)
        if plan is not None:
            self.flying[number].append((plan, self.models[number].run(plan)))
            self.planned[number] = self.planned.get(number, 0) + len(plan.slot)
        self.check()
        return plan is not None

    def settle_of(self, number: int) -> bool:
        if number not in self.models or not self.flying[number]:
            return False
        _, result = self.flying[number].popleft()
        assert self.fleet.settle(number, result, self.now)
        self.check()
        return True

    def fail_of(self, number: int) -> None:
        """A worker's oldest step fails, and with it what is queued behind it."""
        for place, (plan, _) in enumerate(self.flying[number]):
            assert self.fleet.settle(number, Failed(plan.session, plan.step, place == 0, "out of luck"), self.now)
            self.check()
        self.flying[number].clear()

    def submit(self, ask: Submit) -> None:
        self.received.setdefault(ask.request, Received(ask.output.tolist()))
        self.fleet.submit(CLIENT, ask, self.now)
        self.check()

    def ask(self, request: int, max_tokens: int = 12, *, again: bool = False) -> None:
        self.submit(submit(request, [request % VOCAB, 5], max_tokens, ignore_eos=True, again=again))

    def abort(self, request: int) -> None:
        self.fleet.abort(CLIENT, request, self.now)
        self.check()

    def expire(self) -> None:
        self.fleet.expire(self.now)
        self.check()

    def reset(self) -> int:
        """Who begins from now on is to use nothing of those who began before: the models see to it."""
        forgotten = self.fleet.reset_prefix_cache()
        for model in self.models.values():
            model.resets += 1
        self.check()
        return forgotten

    def deliver(self, withhold: Container[int] = ()) -> None:
        """All that is done in the shadow of the device."""
        self.fleet.catch_up()
        while deltas := self.fleet.take_deltas(withhold):
            for _, message in deltas:
                message.check()
                self.receive(message)
        self.check()

    def turn(self) -> bool:
        moved = False
        for number in sorted(self.models):
            while self.plan_of(number):
                moved = True
            moved |= self.settle_of(number)
        self.now += 1
        self.expire()
        self.deliver()
        return moved

    def run(self) -> None:
        for _ in range(10_000):
            if not self.turn():
                return
        raise AssertionError("requests are left that nothing ends")

    def finishes(self, *requests: int) -> list[Finish]:
        self.deliver()
        return [self.received[request].finish for request in requests]
