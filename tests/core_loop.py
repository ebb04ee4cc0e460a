"""Drives the scheduler core against the stub model, in one process and without time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protocol.identity import new_session
from protocol.messages import EXPLAINED, Deltas, Failed, Finish, Opened, Plan, Result, Submit
from scheduler_proc.core import Scheduler
from tests.stub_model import EOS, NextToken, StubModel, hashed

CLIENT = 1


def submit(
    request: int,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    output: Sequence[int] = (),
    temperature: float = 0.0,
    seed: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: Sequence[int] = (),
    timeout: float = 0.0,
    **adjustments: Any,
) -> Submit:
    return Submit(
        request=request,
        prompt=np.array(prompt, np.uint32),
        output=np.array(output, np.uint32),
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=seed,
        ignore_eos=ignore_eos,
        stop_token_ids=np.array(stop_token_ids, np.uint32),
        timeout=timeout,
        **adjustments,
    )


def solo(ask: Submit, next_token: NextToken = hashed, max_model_len: int = 64) -> list[int]:
    """The output of a request that has the machine to itself: what it must always be."""
    tokens = ask.prompt.tolist()
    stops = {*ask.stop_token_ids.tolist()} | (set() if ask.ignore_eos else {EOS})
    output: list[int] = []
    while len(output) < ask.max_tokens and len(tokens) < max_model_len:
        token = next_token(tokens, ask.seed if ask.temperature > 0 else -1)
        tokens.append(token)
        output.append(token)
        if token in stops:
            break
    return output


@dataclass
class Received:
    """What a client has been told of one request."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish = Finish.RUNNING
    error: str = ""
    cached: int = 0
    timing: tuple[float, ...] = ()
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    scores: list[tuple[list[tuple[int, float]], int]] = field(default_factory=list)  # of the prompt but its first token
    first_scored: int = 1


class CoreLoop:
    """Scheduler, stub model and clients; each verb is one event, and the core is checked after every one."""

    def __init__(self, worker: Opened, credit: int = 2, next_token: NextToken = hashed, **rules: Any) -> None:
        self.scheduler = Scheduler(worker, credit, new_session(), **rules)
        self.model = StubModel(worker, next_token)
        self.sent: deque[tuple[Plan, Result]] = deque()
        self.plans: list[Plan] = []
        self.received: dict[int, Received] = {}
        self.now = 0.0

    def submit(self, ask: Submit) -> None:
        known = Received(ask.output.tolist(), first_scored=1 + ask.scores_told)
        self.received.setdefault(ask.request, known)
        self.scheduler.submit(CLIENT, ask, self.now)
        self.scheduler.check()

    def abort(self, request: int) -> None:
        self.scheduler.abort(CLIENT, request, self.now)
        self.scheduler.check()

    def plan(self) -> Plan | None:
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.sent.append((plan, self.model.run(plan)))
        self.scheduler.check()
        return plan

    def settle(self) -> bool:
        if not self.sent:
            return False
        _, result = self.sent.popleft()
        assert self.scheduler.settle(result, self.now)
        self.scheduler.check()
        return True

    def fail(self) -> bool:
        """The oldest step fails, and with it what is queued behind it."""
        if not self.sent:
            return False
        ran = True
        while self.sent:
            plan, _ = self.sent.popleft()
            assert self.scheduler.settle(Failed(plan.session, plan.step, ran, "out of luck"), self.now)
            ran = False
            self.scheduler.check()
        return True

    def expire(self) -> None:
        self.scheduler.expire(self.now)
        self.scheduler.check()

    def reset(self) -> int:
        """Who begins from now on is to use nothing of those who began before: the model sees to it."""
        forgotten = self.scheduler.reset_prefix_cache()
        self.model.resets += 1
        self.scheduler.check()
        return forgotten

    def deliver(self, withhold: Sequence[int] = ()) -> None:
        """All that is done in the shadow of the device."""
        self.scheduler.catch_up()
        self.scheduler.check()
        for client, deltas in self.scheduler.take_deltas(withhold):
            deltas.check()
            if client == CLIENT:
                self.receive(deltas)
        self.scheduler.check()

    def receive(self, deltas: Deltas) -> None:
        """Take in what a client was sent; offsets must go on without gap or duplicate, and nothing after an end."""
        listed = [[] for _ in deltas.token] if deltas.logprobs is None else deltas.logprobs.entries()
        scores = self._scores(deltas)
        taken, errors, timing = 0, iter(deltas.errors), iter(deltas.timing.tolist())
        columns = (deltas.request, deltas.offset, deltas.count, deltas.cached)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, ((request, offset, count, cached), finish) in enumerate(
            zip(rows, deltas.finish.tolist(), strict=True)
        ):
            known = self.received.setdefault(request, Received())
            known.cached = cached
            assert known.finish is Finish.RUNNING, f"request {request} goes on after its end"
            first, of_prompt = scores.get(row, (0, []))
            if of_prompt:
                assert first == known.first_scored + len(known.scores), f"request {request}: scores missing or doubled"
                assert not known.tokens or known.first_scored > 1, "a token came before the scores of its prompt"
                known.scores += of_prompt
            assert offset == len(known.tokens), f"request {request}: a gap or a duplicate"
            known.tokens += deltas.token[taken : taken + count].tolist()
            known.logprobs += listed[taken : taken + count]
            taken += count
            known.finish = Finish(finish)
            if finish:
                known.timing = tuple(next(timing) for _ in range(4))
            if finish in EXPLAINED:
                known.error = next(errors)

    def _scores(self, deltas: Deltas) -> dict[int, tuple[int, list[tuple[list[tuple[int, float]], int]]]]:
        """What is new of prompts, by row: where it begins, and each token's entries and rank."""
        if deltas.scores is None or deltas.score_row is None:
            return {}
        told = list(zip(deltas.scores.logprobs.entries(), deltas.scores.rank.tolist(), strict=True))
        found, at = {}, 0
        for row, first, count in deltas.score_row.reshape(-1, 3).tolist():
            found[row] = (first, told[at : at + count])
            at += count
        return found

    def step(self) -> bool:
        """One turn of the process: as many plans as credit allows, then one answer."""
        while self.plan() is not None:
            pass
        self.now += 1.0
        answered = self.settle()
        self.deliver()
        return answered

    def drain(self, most: int = 10_000) -> None:
        for _ in range(most):
            if not self.step():
                break
        assert self.scheduler.running == self.scheduler.waiting == 0, "requests are left that nothing moves"
        assert self.scheduler.free_blocks == self.scheduler.worker.blocks, "blocks leaked"
        assert self.scheduler.outstanding_tokens == 0

    def tokens(self, request: int) -> list[int]:
        return self.received[request].tokens

    def rows_of(self, slot: int) -> int:
        return sum(slot in plan.slot.tolist() for plan in self.plans)
