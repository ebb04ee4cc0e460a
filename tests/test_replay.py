"""The plans of an overlapped run, replayed one at a time, come to the same bytes: overlap changes no rounding."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.engine import Engine
from protocol.codec import encode
from protocol.messages import Failed, Plan, Result
from tests.core_loop import submit
from tests.real_loop import RealLoop, poisoned_engine
from tests.tiny_models import VOCAB, save, tiny_model

pytestmark = pytest.mark.slow

OPTIONS = {"max_num_seqs": 5, "max_model_len": 96, "block_size": 4, "max_batch_tokens": 24, "kv_cache_blocks": 26}


class Recorded(RealLoop):
    """A loop that keeps what was answered."""

    def __init__(self, engine: Engine, credit: int) -> None:
        super().__init__(engine, credit)
        self.answers: list[bytes] = []

    def collect(self) -> Result | Failed:
        answer = super().collect()
        self.answers.append(encode(answer))
        return answer

    def replay(self, plan: Plan) -> None:
        self.pipeline.launch(plan)
        self.collect()


def poison(engine: Engine) -> None:
    for layer in (*engine.runner.cache.k, *engine.runner.cache.v):
        layer.fill_(math.nan)


def written(engine: Engine) -> Tensor:
    """The KV cache bit by bit, but for the block that is nobody's."""
    cache = engine.runner.cache
    return torch.stack((*cache.k, *cache.v))[:, 1:].cpu().view(torch.uint8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_plans_replayed_one_at_a_time_come_to_the_same_tokens_and_the_same_cache(
    tmp_path: Path, device: str, dtype: str
) -> None:
    engine = poisoned_engine(save(tiny_model("grouped queries"), tmp_path), device=device, dtype=dtype, **OPTIONS)
    dice = random.Random(1)
    overlapped = Recorded(engine, 3)
    for request in range(8):
        prompt = [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 30))]
        temperature = dice.choice([0.0, 0.8])
        ask = submit(
            request,
            prompt,
            30,
            temperature=temperature,
            seed=request,
            ignore_eos=request % 2 > 0,
            presence_penalty=request % 3 / 2,
            logprobs=request if request % 4 == 1 else None,
        )
        overlapped.submit(ask)
        if dice.random() < 0.7:
            overlapped.step()
    overlapped.drain()
    assert overlapped.scheduler.counters.preemptions, "the pool was never short"
    assert any(plan.step - plan.settled > 2 for plan in overlapped.plans), "nothing overlapped"
    cache = written(engine)
    poison(engine)
    one_by_one = Recorded(engine, 1)
    for plan in overlapped.plans:
        one_by_one.replay(plan)
    assert one_by_one.answers == overlapped.answers
    assert torch.equal(written(engine), cache)
    engine.device.close()
