"""Prompts that are scored: each token of them is, once, whatever cuts the prompt up or takes it off its way."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from protocol.logprobs import MOST_LOGPROBS
from protocol.messages import Deltas, Finish, Result, Submit
from scheduler_proc import core
from tests.core_loop import CoreLoop, solo, submit
from tests.stub_model import hashed, opened, score

Told = list[tuple[list[tuple[int, float]], int]]


def due(ask: Submit, start: int = 0) -> Told:
    """What is to be told of the tokens of a prompt behind its first, from the `start`th on."""
    if ask.prompt_logprobs is None:
        return []
    prompt = ask.prompt.tolist()
    return [score(prompt[:at], prompt[at], 1 + ask.prompt_logprobs) for at in range(1 + start, len(prompt))]


def prompt(seed: int, length: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(10, 90) for _ in range(length)]


@pytest.mark.parametrize("credit", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_each_token_of_a_prompt_is_scored_once_whatever_its_chunks(chunk: int, credit: int) -> None:
    loop = CoreLoop(opened(slots=1, max_batch_tokens=chunk), credit)
    asks = [submit(1, prompt(1, 37), 5, prompt_logprobs=2), submit(2, prompt(2, 1), 3, prompt_logprobs=0)]
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    for ask in asks:
        assert loop.received[ask.request].scores == due(ask)
        assert loop.tokens(ask.request) == solo(ask)


def test_what_others_have_computed_spares_a_scored_prompt_nothing_and_what_it_computed_spares_others() -> None:
    loop = CoreLoop(opened())
    ask = submit(1, prompt(1, 20), 3)
    loop.submit(ask)
    loop.drain()
    scored, again = submit(2, ask.prompt.tolist(), 3, prompt_logprobs=1), submit(3, ask.prompt.tolist(), 3)
    loop.submit(scored)
    loop.drain()
    assert loop.received[2].scores == due(scored)
    assert loop.received[2].cached == 0
    loop.reset()
    loop.submit(submit(4, ask.prompt.tolist(), 3, prompt_logprobs=0))
    loop.submit(again)
    loop.drain()
    assert loop.received[3].cached == 16


def test_a_prompt_that_is_not_scored_is_told_nothing_of_and_its_plans_say_nothing() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, prompt(1, 20), 3))
    loop.drain()
    assert loop.received[1].scores == []
    assert all(plan.scored is None and plan.scored_token is None for plan in loop.plans)


def test_a_resumed_prompt_is_scored_from_where_its_client_was_told() -> None:
    loop = CoreLoop(opened(max_batch_tokens=7, slots=1))
    ask = submit(1, prompt(1, 30), 6, prompt_logprobs=1, scores_told=13)
    loop.submit(ask)
    loop.drain()
    assert loop.received[1].scores == due(ask, 13)
    whole = submit(2, ask.prompt.tolist(), 6, output=loop.tokens(1)[:2], prompt_logprobs=1, scores_told=29)
    loop.submit(whole)
    loop.drain()
    assert loop.received[2].scores == []
    assert loop.tokens(2) == loop.tokens(1)
    assert loop.received[2].cached, "nothing is left to be scored, so what is cached may be used"


def test_a_failed_step_is_scored_again_and_told_once() -> None:
    loop = CoreLoop(opened(max_batch_tokens=6, slots=1), 2)
    ask = submit(1, prompt(1, 40), 3, prompt_logprobs=1)
    loop.submit(ask)
    for turn in range(5):
        loop.plan()
        loop.plan()
        if turn % 2:
            loop.fail()
        else:
            loop.settle()
        if turn > 2:
            loop.deliver()
    known = len(loop.received[1].scores)
    assert known, "nothing had been told before the last failure"
    loop.drain()
    assert loop.received[1].scores == due(ask)
    assert loop.tokens(1) == solo(ask)
    # What was told before a failure is computed again only as far as blocks are not whole.
    skipped = [plan.scored.reshape(-1, 4)[:, 1].max() for plan in loop.plans if plan.scored is not None]
    assert max(skipped) < loop.scheduler.worker.block_size


def random_asks(dice: random.Random) -> list[Submit]:
    shared = prompt(3, 24)
    asks = []
    for request in range(14):
        long = dice.random() < 0.5
        text = shared[: dice.randrange(1, 25)] + prompt(request, dice.randrange(0, 20 if long else 4))
        asks.append(
            submit(
                request,
                text,
                dice.randint(1, 30),
                temperature=dice.choice([0.0, 1.0]),
                seed=request,
                prompt_logprobs=dice.choice([None, 0, 1, 3]),
            )
        )
    return asks


@pytest.mark.parametrize("seed", range(4))
def test_tokens_and_scores_are_the_same_whatever_preempts_fails_lags_or_is_cached(seed: int) -> None:
    dice = random.Random(seed)
    worker = opened(slots=4, blocks=18, max_batch_tokens=dice.choice([4, 7, 16, 40]))
    loop = CoreLoop(worker, dice.choice([1, 2, 3]))
    asks = random_asks(dice)
    left, failures = list(asks), 0
    while left or loop.scheduler.running or loop.scheduler.waiting:
        match dice.randrange(8):
            case 0 | 1 if left:
                loop.submit(left.pop(0))
            case 2 | 3 | 4:
                loop.plan()
            case 5 | 6:
                loop.settle()
            case _ if failures < 2 and dice.random() < 0.1:
                failures += loop.fail()
            case _:
                loop.deliver()
    loop.deliver()
    for ask in asks:
        told = loop.received[ask.request]
        assert told.finish in (Finish.STOP, Finish.LENGTH)
        assert told.tokens == solo(ask)
        assert told.scores == due(ask)


@pytest.mark.parametrize("told", [False, True])
def test_a_prompt_whose_slot_is_lost_on_the_way_goes_on_where_it_was(told: bool) -> None:
    loop = CoreLoop(opened(slots=2, max_batch_tokens=6), 2)
    ask = submit(3, prompt(3, 30), 20, ignore_eos=True, prompt_logprobs=2)
    loop.submit(ask)
    for _ in range(2):
        loop.plan()
        loop.settle()
    loop.plan()  # and its answer will be nobody's
    if told:
        loop.deliver()
    request = loop.scheduler._requests[1, 3]
    loop.scheduler._preempt(request)
    loop.scheduler.check()
    assert (request.slot, request.scored, len(loop.received[3].scores)) == (-1, 12, 12 * told)
    loop.settle()
    first = len(loop.plans)
    loop.drain()
    assert loop.received[3].scores == due(ask)
    assert loop.tokens(3) == solo(ask)
    again = [plan.scored for plan in loop.plans[first:] if plan.scored is not None]
    assert sum(int(scored.reshape(-1, 4)[:, 2].sum()) for scored in again) == 29 - 12
    assert loop.plans[first].position.tolist() == [12], "what was computed and scored is computed again"


def test_scores_of_a_client_that_lags_wait_for_it_and_come_before_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_LISTED", 30)
    loop = CoreLoop(opened(slots=4, blocks=64, max_batch_tokens=8))
    asks = [submit(request, prompt(request, 20), 6, ignore_eos=True, prompt_logprobs=1) for request in range(4)]
    for ask in asks:
        loop.submit(ask)
    for _ in range(14):
        while loop.plan() is not None:
            pass
        loop.settle()
    messages: list[Deltas] = []
    while told := loop.scheduler.take_deltas():
        for _, deltas in told:
            deltas.check()
            messages.append(deltas)
            loop.receive(deltas)
        loop.scheduler.check()
    assert len(messages) > 1, "all of it fits into one message"
    loop.drain()
    for ask in asks:
        assert loop.received[ask.request].scores == due(ask)
        assert loop.tokens(ask.request) == solo(ask)


def test_those_who_end_before_their_prompt_does_are_told_what_was_scored() -> None:
    loop = CoreLoop(opened(max_batch_tokens=8))
    ask = submit(1, prompt(1, 30), 6, prompt_logprobs=1)
    loop.submit(ask)
    loop.plan()
    loop.settle()
    loop.abort(1)
    loop.deliver()
    assert loop.received[1].finish is Finish.ABORT
    assert loop.received[1].scores == due(ask)[:8]


def test_a_worker_that_is_lost_in_a_prompt_loses_no_score() -> None:
    loop = CoreLoop(opened(max_batch_tokens=8, slots=1))
    ask = submit(1, prompt(1, 30), 6, prompt_logprobs=1)
    loop.submit(ask)
    loop.plan()
    loop.settle()  # and nobody is told
    loop.scheduler.lose_worker(loop.now)
    loop.sent.clear()
    worker = opened(max_batch_tokens=8, slots=1, session=78)
    loop.scheduler.reopen(worker, loop.now)
    loop.model = type(loop.model)(worker, hashed)
    loop.drain()
    assert loop.received[1].scores == due(ask)
    assert loop.tokens(1) == solo(ask)


def test_an_answer_with_too_few_scores_answers_nothing() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, prompt(1, 10), 3, prompt_logprobs=0))
    plan = loop.plan()
    assert plan is not None
    _, answer = loop.sent[0]
    silent = Result(plan.session, plan.step, answer.token, answer.status)
    assert not loop.scheduler.settle(silent, 0.0)
    loop.drain()
    assert len(loop.received[1].scores) == 9


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"prompt_logprobs": MOST_LOGPROBS}, "prompt_logprobs: 1050 of the prompt's 50 tokens together, at most 1000"),
        ({"prompt_logprobs": 1, "scores_told": 50}, "scores_told is 50"),
    ],
)
def test_what_cannot_be_scored_is_refused(more: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_proc.capacity.MOST_SCORES", 1000)
    loop = CoreLoop(opened())
    loop.submit(submit(1, np.full(50, 3).tolist(), 3, **more))
    loop.deliver()
    assert loop.received[1].finish is Finish.REFUSED
    assert why in loop.received[1].error
