"""Requests that share KV on a real model: over a pool of NaN they say what they say alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpu_worker.engine import Engine
from protocol.messages import Submit
from tests.core_loop import submit
from tests.foreign_models import KINDS, foreign_model
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.tiny_models import VOCAB, save, tiny_model

pytestmark = pytest.mark.slow


def engine_of(folder: Path, kind: str = "grouped queries", **options: object) -> Engine:
    usual = {"max_num_seqs": 4, "max_model_len": 96, "block_size": 4, "max_batch_tokens": 24, "kv_cache_blocks": 60}
    model = foreign_model(kind) if kind in KINDS else tiny_model(kind)
    return poisoned_engine(save(model, folder), **usual | options)


@pytest.mark.parametrize("seed", range(4))
def test_prompts_that_begin_alike_give_the_tokens_of_solo_runs(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    size = dice.choice([3, 4, 16])
    least = -(-63 // size)
    engine = engine_of(
        tmp_path,
        max_model_len=64,
        block_size=size,
        max_batch_tokens=dice.randint(5, 40),
        kv_cache_blocks=least + dice.randint(1, least),
    )
    stem = [dice.randrange(3, VOCAB) for _ in range(48)]
    asks: list[Submit] = []
    for request in range(8):
        prompt = stem[: dice.randint(1, 48)] + [dice.randrange(3, VOCAB) for _ in range(dice.randint(0, 6))]
        hot = dice.choice([0.0, 0.8])
        asks.append(submit(request, prompt, dice.randint(1, 9), temperature=hot, seed=request, ignore_eos=True))
    expected = [alone(engine, ask) for ask in asks]
    for credit in (1, 2, 3):
        loop = RealLoop(engine, credit)
        for ask in asks:
            loop.submit(ask)
            if dice.random() < 0.5:
                loop.step()
            if dice.random() < 0.3:
                loop.deliver()
        loop.drain()
        assert [loop.tokens(ask.request) for ask in asks] == expected
        assert loop.scheduler.counters.cached_tokens
    engine.device.close()


@pytest.mark.parametrize(
    "kind", ["grouped queries", "Ministral", "a window in two of three layers, a scale of its own"]
)
def test_whole_blocks_sent_twice_and_an_answer_sent_back_give_the_same_tokens(tmp_path: Path, kind: str) -> None:
    engine = engine_of(tmp_path, kind)
    dice = random.Random(3)
    for length in (4, 8, 36):
        prompt = [dice.randrange(3, VOCAB) for _ in range(length)]
        loop = RealLoop(engine, 2)
        asks = [submit(request, prompt, 12, ignore_eos=True) for request in (1, 2)]
        for ask in asks:
            loop.submit(ask)
            loop.drain()
        said = alone(engine, asks[0])
        assert [loop.tokens(1), loop.tokens(2)] == [said, said]
        assert loop.received[2].cached == length - 4
        follow_up = submit(3, [*prompt, *said, 5, 6], 12, ignore_eos=True)
        loop.submit(follow_up)
        loop.drain()
        assert loop.received[3].cached == length + 8, "the last token of an answer has no KV"
        assert loop.tokens(3) == alone(engine, follow_up)
    engine.device.close()


@pytest.mark.parametrize("beside", [0, 1, 3])
@pytest.mark.parametrize("over", ["length", "an end token"])
def test_what_ends_where_a_block_ends_is_gone_on_with_as_if_it_were_alone(
    tmp_path: Path, over: str, beside: int
) -> None:
    """All that lies behind the end of an answer, such as rows in flight that turn out to be wasted, changes nothing."""
    engine = engine_of(tmp_path)
    dice = random.Random(beside)
    prompt = [dice.randrange(3, VOCAB) for _ in range(9)]
    said = alone(engine, submit(1, prompt, 23, ignore_eos=True))
    # Prompt and answer end with a block, or one or three tokens behind it.
    length = next(n for n in range(7 + beside, 23, 4) if over == "length" or said[n - 1] not in said[: n - 1])
    assert (len(prompt) + length) % engine.block_size == beside
    ask = submit(1, prompt, length if over == "length" else 40, ignore_eos=True)
    if over == "an end token":
        ask = submit(1, prompt, 40, ignore_eos=True, stop_token_ids=[said[length - 1]])
    follow_up = submit(2, [*prompt, *said[:length], 5, 6, 7], 12, ignore_eos=True)
    expected = alone(engine, follow_up)
    for credit in (1, 2, 3):
        loop = RealLoop(engine, credit)
        loop.submit(ask)
        loop.drain()
        assert loop.tokens(1) == said[:length]
        assert loop.scheduler.counters.wasted_rows == (credit - 1 if over == "an end token" else 0)
        loop.submit(follow_up)
        loop.drain()
        whole = (len(prompt) + length - 1) // engine.block_size * engine.block_size
        assert loop.received[2].cached == whole, "the last token of an answer has no KV"
        assert loop.tokens(2) == expected
    engine.device.close()
