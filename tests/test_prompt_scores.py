"""Prompts scored on the device: what is told of each token is what transformers would say, however it came about."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker import runner
from gpu_worker.engine import Engine
from gpu_worker.logprobs import list_scores, unlisted
from gpu_worker.session import check_plan
from protocol.errors import ProtocolError
from protocol.logprobs import MOST_LOGPROBS
from tests.core_loop import submit
from tests.foreign_models import foreign_model
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.scores import assert_same_scores, by_transformers
from tests.tiny_models import VOCAB, save, tiny_model

OPTIONS: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 64, "block_size": 4, "kv_cache_blocks": 20}
LONG = random.Random(5).choices(range(3, VOCAB), k=41)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("Granite", logits_scaling=0.5)  # with its own all tokens are about as likely


@pytest.fixture(scope="module")
def tiny(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(model, tmp_path_factory.mktemp("tiny"))


def scoring_engine(tiny: Path, device: str, chunk: int) -> Engine:
    slots = min(chunk, OPTIONS["max_num_seqs"])
    return poisoned_engine(tiny, device=device, max_batch_tokens=chunk, **OPTIONS | {"max_num_seqs": slots})


ON_A_GPU = [pytest.param("cuda", chunk, credit, marks=pytest.mark.gpu) for chunk in (3, 16, 48) for credit in (1, 2, 3)]


@pytest.mark.parametrize(
    ("device", "chunk", "credit"), [("cpu", 1, 2), ("cpu", 3, 3), ("cpu", 16, 1), ("cpu", 48, 2), *ON_A_GPU]
)
def test_each_token_of_a_prompt_is_as_likely_as_transformers_says(
    tiny: Path, model: Any, device: str, chunk: int, credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scoring_engine(tiny, device, chunk)
    monkeypatch.setattr(runner, "SCORED_AT_A_TIME", 7)
    loop = RealLoop(engine, credit)
    loop.submit(submit(0, LONG, 2, ignore_eos=True))
    loop.drain()
    assert loop.scheduler.counters.prefill_tokens, "nothing is cached that could be used"
    asks = [
        submit(1, LONG, 3, ignore_eos=True, prompt_logprobs=MOST_LOGPROBS, temperature=0.8, seed=4),
        submit(2, LONG[:22], 9, ignore_eos=True, prompt_logprobs=0, logprobs=2, repetition_penalty=1.3),
        submit(3, LONG[:1], 12, ignore_eos=True, prompt_logprobs=3),
        submit(4, LONG[:9], 5, ignore_eos=True),
    ]
    for ask in asks:
        loop.submit(ask)
        loop.step()
    loop.drain()
    for ask in asks:
        told = loop.received[ask.request]
        assert told.tokens == alone(engine, ask)
        if ask.prompt_logprobs is None:
            assert told.scores == []
        else:
            assert_same_scores(told.scores, by_transformers(model, ask.prompt.tolist(), ask.prompt_logprobs))
    engine.device.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_prompt_that_loses_its_slot_half_scored_is_scored_once(tiny: Path, model: Any, device: str) -> None:
    engine = scoring_engine(tiny, device, 15)
    loop = RealLoop(engine, 2)
    ask = submit(1, LONG, 3, ignore_eos=True, prompt_logprobs=2)
    loop.submit(ask)
    for _ in range(2):
        loop.plan()
        loop.settle()
    request = loop.scheduler._requests[1, 1]
    assert request.scored == 30
    assert request.scored % OPTIONS["block_size"], "what is scored already is computed again, as part of a block"
    loop.plan()
    loop.deliver()
    loop.scheduler._preempt(request)
    loop.drain()
    assert_same_scores(loop.received[1].scores, by_transformers(model, LONG, 2))
    assert loop.tokens(1) == alone(engine, ask)
    engine.device.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_model_of_transformers_code_is_scored_too(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SCORED_AT_A_TIME", 9)
    theirs = foreign_model("bounded scores and logits")
    engine = poisoned_engine(save(theirs, tmp_path), device=device, max_batch_tokens=16, **OPTIONS)
    loop = RealLoop(engine, 2)
    ask = submit(1, LONG[:30], 3, ignore_eos=True, prompt_logprobs=2)
    loop.submit(ask)
    loop.drain()
    assert_same_scores(loop.received[1].scores, by_transformers(theirs, LONG[:30], 2))
    assert loop.tokens(1) == alone(engine, ask)
    engine.device.close()


def test_of_tokens_as_likely_as_each_other_none_is_likelier() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [torch.nan] * 4])
    scores = list_scores(logits, torch.tensor([2, 3, 0]), 3)
    tokens, logprobs, rank = unlisted(scores.view(-1).numpy(), np.array([3, 1, 2], np.uint8))
    assert rank.tolist() == [1, 1, 1]
    assert tokens.tolist()[:4] == [2, *scores[0, 2:4].tolist(), 3]
    assert logprobs.tolist()[:4] == pytest.approx([-0.78, -0.78, -0.78, -1.386], abs=0.01)
    assert np.isfinite(logprobs).all()


def test_a_plan_that_scores_no_token_of_the_vocabulary_is_refused(tiny: Path) -> None:
    engine = poisoned_engine(tiny, max_batch_tokens=16, **OPTIONS)
    loop = RealLoop(engine, 1)
    loop.submit(submit(1, LONG, 3, prompt_logprobs=0))
    plan = loop.plan()
    assert plan is not None
    assert plan.scored_token is not None
    check_plan(plan, engine)
    wrong = plan.scored_token.copy()
    wrong[0] = VOCAB
    with pytest.raises(ProtocolError, match="what is scored is no token"):
        check_plan(replace(plan, scored_token=wrong), engine)
    loop.settle()
    engine.device.close()
