"""The step pipeline on the CPU device: order, overlap and failure."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.cpu_device import CPUDevice
from gpu_worker.engine import Engine
from protocol.messages import Failed, Finish, Result
from tests.core_loop import submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.seeds import seeds
from tests.tiny_models import VOCAB, save, tiny_model

pytestmark = pytest.mark.slow


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


def _prompt(dice: random.Random, longest: int) -> list[int]:
    return [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, longest))]


@pytest.mark.parametrize("seed", seeds(10, 20))
def test_overlap_chunks_neighbours_and_preemption_change_no_token(tiny: Path, seed: int) -> None:
    dice = random.Random(seed)
    block_size = dice.choice([3, 4, 16])
    least = -(-47 // block_size)
    engine = poisoned_engine(
        tiny,
        max_num_seqs=dice.randint(2, 5),
        max_model_len=48,
        block_size=block_size,
        max_batch_tokens=dice.randint(5, 40),
        kv_cache_blocks=least + dice.randint(1, max(1, min(3, least // 3))),  # little more than one full request
    )
    asks = [
        submit(
            request,
            _prompt(dice, 8),
            dice.randint(32, 38) if request < 2 else dice.randint(1, 30),
            temperature=dice.choice([0.0, 0.8]),
            seed=dice.randrange(2**64),
            ignore_eos=request < 2 or dice.random() < 0.5,
        )
        for request in range(7)
    ]
    outputs = {}
    for credit in (1, 2, 3):
        loop = RealLoop(engine, credit)
        for ask in asks:
            loop.submit(ask)
            if dice.random() < 0.5:
                loop.step()
        loop.drain()
        outputs[credit] = [loop.tokens(ask.request) for ask in asks]
        assert loop.scheduler.counters.preemptions, "the pool was never short: another seed, please"
    assert outputs[1] == outputs[2] == outputs[3] == [alone(engine, ask) for ask in asks]
    engine.device.close()


def test_a_late_copy_of_the_tokens_to_the_host_changes_none(engine: Engine) -> None:
    ask = submit(1, [5, 6, 7], 12, ignore_eos=True)
    expected = alone(engine, ask)
    loop = RealLoop(engine, 2)
    loop.submit(ask)
    device = engine.device
    assert isinstance(device, CPUDevice)
    for _ in range(6):
        gate = threading.Event()
        device.copy_out.run(_closed(gate))
        while loop.plan() is not None:
            pass
        computed = device.compute.record()
        computed.block()  # all that was sent has been computed; nothing of it has reached the host
        assert not loop.pipeline.ready()
        gate.set()
        while loop.settle():
            pass
    loop.deliver()
    assert loop.tokens(1) == expected


def test_the_next_plan_is_launched_while_the_one_before_it_computes(engine: Engine) -> None:
    loop = RealLoop(engine, 2)
    loop.submit(submit(1, [5, 6, 7], 6, ignore_eos=True))
    gate = threading.Event()
    assert isinstance(engine.device, CPUDevice)
    engine.device.compute.run(_closed(gate))
    assert loop.plan() is not None
    assert loop.plan() is not None, "a second plan waits for the first"
    assert len(loop.pipeline) == 2
    assert not loop.pipeline.room
    gate.set()
    loop.drain()


def test_the_device_is_busy_while_it_computes_and_at_no_other_time(engine: Engine) -> None:
    loop = RealLoop(engine, 2)
    loop.submit(submit(1, [5, 6, 7], 3, ignore_eos=True))
    assert isinstance(engine.device, CPUDevice)
    held = threading.Event()
    engine.device.copy_in.run(_closed(held))  # a plan whose columns are late keeps nobody busy
    began = time.perf_counter()
    assert loop.plan() is not None
    time.sleep(0.2)
    held.set()
    loop.drain()
    time.sleep(0.1)
    assert 0.0 < loop.pipeline.busy_seconds < time.perf_counter() - began - 0.3 + 0.01


def _closed(gate: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        assert gate.wait(20.0)

    return wait


def _breaking(engine: Engine, monkeypatch: pytest.MonkeyPatch, at_steps: set[int]) -> None:
    run = engine.runner.run

    def broken(plan: Any, *rest: Any) -> None:
        if plan.step in at_steps:
            raise RuntimeError("the device is out of luck")
        run(plan, *rest)

    monkeypatch.setattr(engine.runner, "run", broken)


def test_a_failed_step_fails_what_is_queued_behind_it_and_no_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _breaking(engine, monkeypatch, {3})
    loop = RealLoop(engine, 2)
    loop.submit(submit(1, [5, 6, 7], 8, ignore_eos=True))
    answers: list[Result | Failed] = []
    while not answers or len(loop.pipeline):
        while loop.plan() is not None:
            pass
        answer = loop.collect()
        answers.append(answer)
        loop.scheduler.settle(answer, 0.0)
    assert [isinstance(answer, Result) for answer in answers[:6]] == [True, True, False, False, True, True]
    assert [answer.ran for answer in answers if isinstance(answer, Failed)] == [True, False]
    assert "out of luck" in next(answer.error for answer in answers if isinstance(answer, Failed))


def test_failed_steps_change_no_token(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [submit(request, [5 + request, 6, 7], 10, ignore_eos=True) for request in range(3)]
    expected = [alone(engine, ask) for ask in asks]
    _breaking(engine, monkeypatch, {2, 7})
    loop = RealLoop(engine, 2)
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == expected
    assert loop.scheduler.counters.failed_steps == 4


def test_a_row_whose_logits_are_nan_ends_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [submit(request, [5 + request, 6, 7], 6, ignore_eos=True) for request in range(2)]
    expected = alone(engine, asks[1])
    forward = engine.runner._model.forward

    def poisoned(tokens: torch.Tensor, positions: torch.Tensor, *rest: Any) -> torch.Tensor:
        logits = forward(tokens, positions, *rest)
        if len(logits) == 2 and int(positions.max()) == 5:
            logits[0] = torch.nan
        return logits

    monkeypatch.setattr(engine.runner._model, "forward", poisoned)
    loop = RealLoop(engine, 2)
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert loop.received[0].finish is Finish.ERROR
    assert loop.received[1].tokens == expected
