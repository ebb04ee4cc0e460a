"""Log probabilities: the device's are the model's own, and each reaches its client once, beside its token."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.engine import Engine
from gpu_worker.logprobs import list_logprobs
from protocol.logprobs import LOWEST_LOGPROB, MOST_LOGPROBS, Logprobs, joined
from protocol.messages import Finish, Result
from scheduler_proc import core, outbox
from tests.core_loop import CoreLoop, submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.stub_model import opened
from tests.tiny_models import VOCAB, save, tiny_model


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("grouped queries")


@pytest.fixture(scope="module")
def tiny(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(model, tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tiny: Path) -> Iterator[Engine]:
    engine = poisoned_engine(
        tiny, max_num_seqs=4, max_model_len=64, block_size=4, max_batch_tokens=12, kv_cache_blocks=17
    )
    yield engine
    engine.device.close()


def by_transformers(model: Any, prompt: list[int], output: list[int]) -> Tensor:
    """The log probabilities of all tokens in each place of the output: [len(output), VOCAB]."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0]
    return torch.as_tensor(logits[len(prompt) - 1 : -1].double().log_softmax(dim=-1))


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_each_token_has_the_models_own_log_probabilities_whatever_runs_beside_it(
    engine: Engine, model: Any, credit: int
) -> None:
    dice = random.Random(credit)
    wanted: list[int | None] = [5, None, 0, MOST_LOGPROBS, 1, None]
    asks = [
        submit(
            request,
            [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 20))],
            30 if request < 2 else 12,
            temperature=dice.choice([0.0, 0.9]),
            seed=request,
            ignore_eos=True,
            logprobs=count,
            # What changes the draw changes nothing of what is told about the model.
            repetition_penalty=1.3 if request == 3 else 1.0,
            banned_token_ids=np.array([7], np.uint32) if request == 3 else None,
        )
        for request, count in enumerate(wanted)
    ]
    loop = RealLoop(engine, credit)
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert loop.scheduler.counters.preemptions, "the pool was never short"
    for ask, count in zip(asks, wanted, strict=True):
        told = loop.received[ask.request]
        assert told.tokens == alone(engine, ask)
        if count is None:
            assert told.logprobs == [[]] * len(told.tokens)
            continue
        expected = by_transformers(model, ask.prompt.tolist(), told.tokens)
        for token, entries, row in zip(told.tokens, told.logprobs, expected, strict=True):
            own, *likeliest = entries
            assert own[0] == token
            assert own[1] == pytest.approx(float(row[token]), abs=1e-4)
            assert [logprob for _, logprob in likeliest] == pytest.approx(row.topk(count).values.tolist(), abs=1e-4)
            assert [float(row[each]) for each, _ in likeliest] == pytest.approx(
                [logprob for _, logprob in likeliest], abs=1e-4
            )
            assert len({each for each, _ in likeliest}) == count


def test_a_resumed_request_is_told_of_its_new_tokens_alone(engine: Engine) -> None:
    loop = RealLoop(engine, 2)
    loop.submit(submit(1, [5, 6, 7], 10, ignore_eos=True, logprobs=2))
    loop.drain()
    whole = loop.received[1]
    loop.submit(submit(2, [5, 6, 7], 10, output=whole.tokens[:6], ignore_eos=True, logprobs=2))
    loop.drain()
    assert loop.tokens(2) == whole.tokens
    for now, then in zip(loop.received[2].logprobs, whole.logprobs[6:], strict=True):
        assert [token for token, _ in now] == [token for token, _ in then]
        assert [logprob for _, logprob in now] == pytest.approx([logprob for _, logprob in then], abs=1e-4)


def test_nothing_is_lower_than_json_can_say_and_nothing_is_nan() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -1e30], [torch.nan, 0.0, 0.0, 0.0]])
    token, logprob = list_logprobs(logits, torch.tensor([1, 0]), 4)
    assert token[0].tolist() == [1, 2, 0, 3]
    assert logprob[0].tolist() == pytest.approx([LOWEST_LOGPROB, -0.31326, -1.31326, LOWEST_LOGPROB], abs=1e-4)
    assert logprob[1].isfinite().all()


def test_a_row_of_nan_that_wants_log_probabilities_ends_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = engine.runner._model.forward

    def poisoned(tokens: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        logits = forward(tokens, positions, *rest)
        if len(logits) == 2 and int(positions.max()) == 5:
            logits[0] = torch.nan
        return logits

    monkeypatch.setattr(engine.runner._model, "forward", poisoned)
    loop = RealLoop(engine, 2)
    for request in (1, 2):
        loop.submit(submit(request, [5 + request, 6, 7], 6, ignore_eos=True, logprobs=3))
    loop.drain()
    assert loop.received[1].finish is Finish.ERROR
    assert len(loop.received[1].logprobs) == len(loop.tokens(1))
    assert [len(entries) for entries in loop.received[2].logprobs] == [4] * 6


# ---------------------------------------------------------------- the scheduler alone


class Telling(CoreLoop):
    """A core whose worker tells of each wanted token that it is as likely as its id is high."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(opened(**facts))
        self.wanting: dict[int, int] = {}
        self.most_at_once = 0

    def deliver(self, withhold: Sequence[int] = ()) -> None:
        while messages := self.scheduler.take_deltas(withhold):
            for _, deltas in messages:
                deltas.check()
                self.receive(deltas)
                if deltas.logprobs is not None:
                    self.most_at_once = max(self.most_at_once, len(deltas.logprobs.token))
                    ends = np.cumsum(deltas.count)
                    telling = sum(map(np.any, np.split(deltas.logprobs.count, ends[:-1])))
                    assert len(deltas.logprobs.token) <= outbox.MOST_LISTED or telling <= 2  # an ended one, a live one
            self.scheduler.check()

    def settle(self) -> bool:
        if not self.sent:
            return False
        plan, result = self.sent.popleft()
        for place, slot in enumerate(plan.begin_slot.tolist()):
            self.wanting[slot] = 0 if plan.listed is None else int(plan.listed[place])
        sampled = plan.slot[(plan.flags & 2) > 0].tolist()
        count = np.array([self.wanting[slot] for slot in sampled], np.uint8)
        token = np.repeat(result.token, count)
        logprob = -(token / 4).astype(np.float32)
        told = Result(plan.session, plan.step, result.token, result.status, count, token, logprob)
        assert self.scheduler.settle(told if count.any() else result, self.now)
        self.scheduler.check()
        return True


@pytest.mark.parametrize("most", [outbox.MOST_LISTED, 30])
def test_log_probabilities_reach_their_client_once_however_much_it_lags(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_LISTED", most)
    monkeypatch.setattr(core, "MOST_LISTED", most)
    dice = random.Random(7)
    loop = Telling(slots=3, blocks=20, block_size=4, max_model_len=64)
    asks = [
        submit(request, [request + 1] * 5, 40, ignore_eos=True, logprobs=None if request % 3 == 1 else request % 3)
        for request in range(7)
    ]
    for ask in asks:
        loop.submit(ask)
    loop.submit(submit(7, [3, 4], 50, ignore_eos=True, logprobs=0))
    for turn in range(100):
        while loop.plan() is not None:
            pass
        loop.settle()
        if turn == 30:
            loop.abort(7)
        if dice.random() < 0.1:
            loop.deliver()
    loop.drain()
    assert loop.scheduler.counters.preemptions, "the pool was never short"
    for ask in asks:
        told = loop.received[ask.request]
        entries = 0 if ask.logprobs is None else 1 + ask.logprobs
        assert told.logprobs == [[(token, -token / 4)] * entries for token in told.tokens]
    assert loop.most_at_once > 30, "nobody lagged far enough"


def test_those_who_ended_unheard_are_told_of_in_messages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_LISTED", 50)
    loop = Telling(slots=3)
    for request in range(6):
        loop.submit(submit(request, [request + 1], 10, ignore_eos=True, logprobs=1))
    while loop.plan() is not None or loop.settle():
        pass
    loop.deliver()
    assert all(len(loop.received[request].logprobs) == 10 for request in range(6))
    assert loop.most_at_once == 40


def test_a_step_that_nobody_wants_to_know_about_says_nothing() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1, 2], 4, ignore_eos=True))
    loop.submit(submit(2, [1, 2], 4, ignore_eos=True, logprobs=0))
    loop.drain()
    assert loop.plans[0].listed is not None
    assert loop.plans[0].listed.tolist() == [0, 1]
    assert all(plan.listed is None for plan in loop.plans[1:])
    assert loop.received[2].logprobs == [[]] * 4, "a worker that does not tell keeps no token back"


def test_parts_put_together_are_the_whole() -> None:
    whole = Logprobs(np.array([0, 2, 1, 0, 3], "<u1"), np.arange(6, dtype="<u4"), -np.arange(6, dtype="<f4"))
    assert [len(entries) for entries in whole.entries()] == [0, 2, 1, 0, 3]
    for cut in range(6):
        assert joined([whole.part(0, cut), whole.part(cut, 5)]).entries() == whole.entries()
    assert joined(whole.of(range(5))).entries() == whole.entries()
    assert joined([]).entries() == []
