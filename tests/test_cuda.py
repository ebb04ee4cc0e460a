"""The same pipeline on a GPU: what needs CUDA to be shown."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint import load_config
from gpu_worker import safetensors_tensors
from gpu_worker.loading import load_weights
from gpu_worker.weights import destinations
from protocol.messages import Plan
from tests.core_loop import submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.tiny_models import VARIANTS, VOCAB, save, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

OPTIONS = {"max_num_seqs": 5, "max_model_len": 96, "block_size": 4, "max_batch_tokens": 24, "kv_cache_blocks": 26}


ADJUSTED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "logprobs": 5},
    {"logprobs": 0, "prompt_logprobs": 3},
    {"presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"bias_token_ids": np.array([9, 10], np.uint32), "bias": np.array([2.5, -2.5], np.float32), "min_tokens": 3},
    {"allowed_token_ids": np.arange(3, 90, dtype=np.uint32), "banned_token_ids": np.array([7], np.uint32)},
    {  # no token comes twice in a row
        "bad_word_tokens": np.arange(3, 90, dtype=np.uint32).repeat(2),
        "bad_word_lengths": np.full(87, 2, np.uint8),
    },
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_on_the_gpu_are_those_on_the_cpu_at_any_credit(tmp_path: Path, variant: str) -> None:
    model = save(tiny_model(variant), tmp_path)
    dice = random.Random(variant)
    asks = [
        submit(
            request,
            [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 4 if request < 2 else 40))],
            70 if request < 2 else dice.randint(1, 20),  # the first two outgrow the pool
            temperature=dice.choice([0.0, 0.8]),
            seed=dice.randrange(2**64),
            ignore_eos=True,
            **(dice.choice(ADJUSTED) if request % 2 else {}),
        )
        for request in range(9)
    ]
    cpu = poisoned_engine(model, **OPTIONS)
    expected = [alone(cpu, ask) for ask in asks]
    cpu.device.close()
    gpu = poisoned_engine(model, device="cuda", **OPTIONS)
    for credit in (1, 2, 3):
        loop = RealLoop(gpu, credit)
        for ask in asks:
            loop.submit(ask)
            if dice.random() < 0.5:
                loop.step()
        loop.drain()
        assert [loop.tokens(ask.request) for ask in asks] == expected, f"credit {credit}"
        assert loop.scheduler.counters.preemptions, "the pool was never short"
    gpu.device.close()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("eager", [False, True])
def test_no_step_makes_the_host_wait_for_the_gpu(tmp_path: Path, eager: bool) -> None:
    gpu = poisoned_engine(save(tiny_model("grouped queries"), tmp_path), device="cuda", enforce_eager=eager, **OPTIONS)
    loop = RealLoop(gpu, 2)
    launch = loop.pipeline.launch

    def launched_without_waiting(plan: Plan) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    loop.pipeline.launch = launched_without_waiting  # type: ignore[method-assign]
    for request, temperature in enumerate((0.0, 0.7, 1.0, 0.0)):
        loop.submit(submit(request, list(range(3, 20 + request)), 12, temperature=temperature, seed=5, ignore_eos=True))
        loop.step()
    for request, more in enumerate(ADJUSTED, 4):
        loop.submit(submit(request, list(range(3, 20)), 12, temperature=request % 2, seed=5, ignore_eos=True, **more))
        loop.step()
    loop.drain()
    assert all(len(loop.tokens(request)) == 12 for request in range(4 + len(ADJUSTED)))
    gpu.device.close()


def test_kernel_by_kernel_the_tokens_are_those_of_graphs(tmp_path: Path) -> None:
    model = save(tiny_model("grouped queries"), tmp_path)
    asks = [submit(number, [5, 6, 7 + number], 20, ignore_eos=True) for number in range(5)]
    tokens = []
    for eager in (False, True):
        gpu = poisoned_engine(model, device="cuda", enforce_eager=eager, **OPTIONS)
        loop = RealLoop(gpu, 2)
        for ask in asks:
            loop.submit(ask)
        loop.drain()
        tokens.append([loop.tokens(ask.request) for ask in asks])
        gpu.device.close()
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_weights_arrive_on_the_gpu_as_they_do_on_the_cpu(
    stored: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_tensors, "_PIECE", 1000)  # less than a matrix: the buffer is used again and again
    model = save(tiny_model("biases everywhere").to(getattr(torch, stored)), tmp_path)
    config, dtype = load_config(model), getattr(torch, wanted)
    cpu, gpu = (
        destinations(load_weights(model, config, dtype, torch.device(kind)), config) for kind in ("cpu", "cuda")
    )
    for name, view in gpu.items():
        assert view.device.type == "cuda"
        assert torch.equal(view.cpu(), cpu[name]), name


def test_float16_is_computed_in_float16_on_the_gpu(tmp_path: Path) -> None:
    engine = poisoned_engine(save(tiny_model("grouped queries"), tmp_path), device="cuda", dtype="float16", **OPTIONS)
    assert engine.dtype == "float16"
    loop = RealLoop(engine, 2)
    loop.submit(submit(1, [3, 1, 4, 1, 5], 8, temperature=0.0, ignore_eos=True))
    loop.drain()
    assert len(loop.tokens(1)) == 8
    engine.device.close()
