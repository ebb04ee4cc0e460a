"""Requests with penalties, biases and bans, from the scheduler's core to the real step pipeline on the CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpu_worker.engine import Engine
from protocol.messages import Finish, Submit
from tests.core_loop import CoreLoop, submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.seeds import seeds
from tests.stub_model import opened
from tests.tiny_models import VOCAB, save, tiny_model

EOS = 2


def ids(*tokens: int) -> NDArray[np.uint32]:
    return np.array(tokens, np.uint32)


def biases(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model("grouped queries"), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tiny: Path) -> Iterator[Engine]:
    engine = poisoned_engine(
        tiny, max_num_seqs=4, max_model_len=96, block_size=4, max_batch_tokens=24, kv_cache_blocks=40
    )
    yield engine
    engine.device.close()


@pytest.fixture
def flat(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A model whose logits are nearly the same for every token: they fall by a tenth from each id to the next."""

    def forward(tokens: torch.Tensor, positions: torch.Tensor, logits_at: torch.Tensor, *_: Any) -> torch.Tensor:
        return (-0.1 * torch.arange(VOCAB)).repeat(len(logits_at), 1)

    monkeypatch.setattr(engine.runner._model, "forward", forward)
    return engine


def tokens_of(engine: Engine, credit: int, *asks: Submit) -> list[list[int]]:
    loop = RealLoop(engine, credit)
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    return [loop.tokens(ask.request) for ask in asks]


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_a_token_is_penalised_before_any_host_knows_it(flat: Engine, credit: int) -> None:
    asks = [
        submit(1, [5, 6, 7], 20, ignore_eos=True, presence_penalty=2.0),
        submit(2, [5, 6], 6, ignore_eos=True, frequency_penalty=0.25),
        submit(3, [0, 1, 3], 6, ignore_eos=True, repetition_penalty=2.0),
        submit(4, [5], 6, ignore_eos=True),
    ]
    # Twenty tokens span two points of logits, so nothing comes twice; three times 0.25 outweigh what 0.1 begins with.
    assert tokens_of(flat, credit, *asks) == [list(range(20)), [0, 1, 2, 0, 3, 1], [0] * 6, [0] * 6]


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_nothing_ends_an_answer_before_min_tokens(flat: Engine, credit: int) -> None:
    asks = [
        submit(1, [5], 20, min_tokens=5, bias_token_ids=ids(EOS), bias=biases(50.0)),
        submit(2, [5], 20, min_tokens=3, stop_token_ids=[0, 1], ignore_eos=True),
        submit(3, [5], 20, bias_token_ids=ids(EOS), bias=biases(50.0)),
    ]
    loop = RealLoop(flat, credit)
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert [loop.tokens(request) for request in (1, 2, 3)] == [[0] * 5 + [EOS], [2, 2, 2, 0], [EOS]]
    assert all(loop.received[request].finish is Finish.STOP for request in (1, 2, 3))


def test_biases_and_bans_decide_what_comes(flat: Engine) -> None:
    asks = [
        submit(1, [5], 3, ignore_eos=True, bias_token_ids=ids(77), bias=biases(100.0)),
        submit(2, [5], 3, ignore_eos=True, bias_token_ids=ids(0, 1), bias=biases(-100.0, -100.0)),
        submit(3, [5], 3, ignore_eos=True, allowed_token_ids=ids(90, 40, 60)),
        submit(4, [5], 3, ignore_eos=True, banned_token_ids=ids(0, 1, 2)),
    ]
    assert tokens_of(flat, 2, *asks) == [[77] * 3, [2] * 3, [40] * 3, [3] * 3]


def test_the_same_prompt_twice_gives_the_tokens_of_transformers(engine: Engine) -> None:
    model = tiny_model("grouped queries")
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=24,
            do_sample=False,
            repetition_penalty=1.3,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    loop = RealLoop(engine, 2)
    for request in (1, 2):
        loop.submit(submit(request, prompt, 24, ignore_eos=True, repetition_penalty=1.3))
        loop.drain()
    assert loop.tokens(1) == loop.tokens(2) == expected
    assert expected != alone(engine, submit(3, prompt, 24, ignore_eos=True)), "the penalty changes nothing"


def adjusted(dice: random.Random) -> dict[str, Any]:
    """Some settings, or none: neighbours of both kinds matter."""
    kind = dice.randrange(5)
    if kind == 0:
        return {}
    if kind == 1:
        return {"repetition_penalty": dice.choice([0.8, 1.3, 2.0])}
    if kind == 2:
        return {"presence_penalty": dice.uniform(-2, 2), "frequency_penalty": dice.uniform(-2, 2)}
    if kind == 3:
        return {"bias_token_ids": ids(7, 8), "bias": biases(3.0, 5.0), "frequency_penalty": 1.0}
    return {
        "min_tokens": dice.randint(1, 8),
        "banned_token_ids": ids(dice.randrange(3, VOCAB)),
        "presence_penalty": 1.5,
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3, 6))
def test_overlap_neighbours_chunks_preemption_and_resumption_change_no_token(tiny: Path, seed: int) -> None:
    dice = random.Random(seed)
    engine = poisoned_engine(
        tiny, max_num_seqs=dice.randint(2, 5), max_model_len=48, block_size=4, max_batch_tokens=dice.randint(5, 30),
        kv_cache_blocks=12 + dice.randint(1, 3),
    )  # fmt: skip
    asks = [
        submit(
            request,
            [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 8))],
            dice.randint(32, 38) if request < 2 else dice.randint(8, 30),
            temperature=dice.choice([0.0, 0.8]),
            seed=dice.randrange(2**64),
            ignore_eos=request < 2,
            **(adjusted(dice) if request else {"repetition_penalty": 1.2, "presence_penalty": 0.5}),
        )
        for request in range(7)
    ]
    expected = [alone(engine, ask) for ask in asks]
    for credit in (1, 2, 3):
        loop = RealLoop(engine, credit)
        for ask in asks:
            loop.submit(ask)
            if dice.random() < 0.5:
                loop.step()
        loop.drain()
        assert [loop.tokens(ask.request) for ask in asks] == expected, f"credit {credit}"
        assert loop.scheduler.counters.preemptions, "the pool was never short: another seed, please"
    for ask, tokens in zip(asks, expected, strict=True):
        assert ask.min_tokens <= len(tokens)
        known = tokens[: len(tokens) // 2]
        resumed = submit(
            ask.request, ask.prompt.tolist(), ask.max_tokens, output=known, temperature=ask.temperature, seed=ask.seed,
            ignore_eos=ask.ignore_eos, repetition_penalty=ask.repetition_penalty, min_tokens=ask.min_tokens,
            presence_penalty=ask.presence_penalty, frequency_penalty=ask.frequency_penalty,
            bias_token_ids=ask.bias_token_ids, bias=ask.bias, banned_token_ids=ask.banned_token_ids,
        )  # fmt: skip
        assert alone(engine, resumed) == tokens
    engine.device.close()


def test_a_failed_step_changes_no_token_of_a_penalised_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [
        submit(1, [5, 6, 7], 12, ignore_eos=True, repetition_penalty=1.4, frequency_penalty=0.5),
        submit(2, [8, 9], 12, ignore_eos=True, presence_penalty=1.0),
        submit(3, [9], 12, ignore_eos=True),
    ]
    expected = [alone(engine, ask) for ask in asks]
    count, broken = engine.runner._adjustments.count, [3, 9]

    def breaking(row: torch.Tensor, token: torch.Tensor) -> None:
        count(row, token)  # what a step that fails has done already must not last
        broken[:] = [left - 1 for left in broken]
        if 0 in broken:
            raise RuntimeError("the device is out of luck")

    monkeypatch.setattr(engine.runner._adjustments, "count", breaking)
    assert tokens_of(engine, 2, *asks) == expected
    assert max(broken) < 0, "no step has failed"


def test_a_slot_of_a_penalised_request_passes_to_a_plain_one_without_a_trace(flat: Engine) -> None:
    loop = RealLoop(flat, 2)
    for request in range(12):
        loop.submit(submit(request, [5], 4, ignore_eos=True, presence_penalty=0.0 if request % 3 else 2.0))
    loop.drain()
    assert [loop.tokens(request) for request in range(12)] == [
        [0] * 4 if request % 3 else [0, 1, 2, 3] for request in range(12)
    ]
    assert flat.runner._adjustments.rows <= 4


# ---------------------------------------------------------------- the scheduler alone


def test_a_step_without_adjusted_rows_says_nothing_of_them() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1, 2], 4, ignore_eos=True, presence_penalty=1.0))
    loop.submit(submit(2, [1, 2], 4, ignore_eos=True))
    loop.drain()
    assert loop.plans[0].adjusting is not None
    assert loop.plans[0].adjusting.slot.tolist() == [0]
    assert all(plan.adjusting is None for plan in loop.plans[1:])


def test_notes_of_many_requests_are_spread_over_plans_in_order_of_arrival() -> None:
    loop = CoreLoop(opened(slots=8))
    for request in range(1, 8):
        loop.submit(submit(request, [1], 4, ignore_eos=True, allowed_token_ids=ids(*[7] * 1000)))
    loop.drain()
    begun = [plan.begin_slot.tolist() for plan in loop.plans if len(plan.begin_slot)]
    assert begun == [[0, 1, 2, 3, 4], [5, 6]]
    assert all(len(plan.adjusting.note) <= 64 + 5120 for plan in loop.plans if plan.adjusting is not None)


@pytest.mark.parametrize(
    "adjustments",
    [
        {"bias_token_ids": ids(97), "bias": biases(1.0)},
        {"allowed_token_ids": ids(97)},
        {"allowed_token_ids": ids()},
        {"allowed_token_ids": ids(*[1] * 1025)},
        {"allowed_token_ids": ids(4), "banned_token_ids": ids(4)},
        {"allowed_token_ids": ids(5), "min_tokens": 2},
        {"banned_token_ids": ids(*range(97))},
        {"min_tokens": 9},
    ],
    ids=lambda adjustments: ", ".join(adjustments),
)
def test_adjustments_that_leave_nothing_or_name_no_token_are_refused(adjustments: dict[str, Any]) -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1], 8, **adjustments))
    loop.submit(submit(2, [1], 2, ignore_eos=True))
    loop.drain()
    assert loop.received[1].finish is Finish.REFUSED
    assert loop.received[1].error
    assert len(loop.tokens(2)) == 2
