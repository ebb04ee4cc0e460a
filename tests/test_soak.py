"""Minutes of random arrivals, lengths, aborts and preemptions: the same tokens as ever, and nothing that piles up."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest
import torch

from gpu_worker.engine import Engine
from protocol.messages import Deltas, Finish, Plan, Submit
from tests.core_loop import Received, submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.tiny_models import VOCAB, save, tiny_model

pytestmark = pytest.mark.slow

OPTIONS = {"max_num_seqs": 16, "max_model_len": 128, "block_size": 8, "max_batch_tokens": 48, "kv_cache_blocks": 60}
MOST_WAITING = 40
REMEMBERED = 12
"""Requests that are computed alone in the end."""

WARM_UP_SHARE = 0.25
MOST_GROWTH_MIB = 2.0


class Soak(RealLoop):
    """A loop that keeps nothing of what is over, but some requests to compare."""

    def __init__(self, engine: Engine, dice: random.Random) -> None:
        super().__init__(engine, credit=2)
        self.dice = dice
        self.stem = [dice.randrange(3, VOCAB) for _ in range(30)]
        self.asks: dict[int, Submit] = {}
        self.ended: dict[Finish, int] = dict.fromkeys(Finish, 0)
        self.remembered: deque[tuple[Submit, Received]] = deque(maxlen=REMEMBERED)
        self.arrived = 0

    def plan(self) -> Plan | None:
        plan = super().plan()
        self.plans.clear()
        return plan

    def receive(self, deltas: Deltas) -> None:
        super().receive(deltas)
        for request in [request for request, told in self.received.items() if told.finish]:
            told, ask = self.received.pop(request), self.asks.pop(request)
            self.ended[told.finish] += 1
            whole = told.finish in (Finish.STOP, Finish.LENGTH)
            if whole and self.dice.random() < 0.25:
                self.remembered.append((ask, told))

    def turn(self) -> None:
        self.now += 0.001
        if self.dice.random() < 0.4 and self.scheduler.waiting < MOST_WAITING:
            self.arrive()
        if self.asks and self.dice.random() < 0.03:
            self.abort(self.dice.choice(list(self.asks)))
        while self.plan() is not None:
            pass
        self.settle()
        self.deliver()

    def arrive(self) -> None:
        dice = self.dice
        self.arrived += 1
        prompt = [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 60))]
        if dice.random() < 0.5:
            prompt[:30] = self.stem[: min(30, len(prompt))]
        heat = dice.choice([0.0, 0.8])
        ask = submit(
            self.arrived,
            prompt,
            dice.randint(1, 60),
            temperature=heat,
            seed=self.arrived,
            ignore_eos=dice.random() < 0.5,
        )
        self.asks[ask.request] = ask
        self.submit(ask)


def memory_mib(device: str) -> tuple[float, float]:
    """What this process holds, and what it holds of the GPU.

    Files that are mapped don't count: their pages are its own or shared as other processes come and go.
    """
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    kib = sum(int(line[1]) for line in lines if line[0] in {"RssAnon:", "VmSwap:"})
    on_gpu = torch.cuda.memory_allocated() if device == "cuda" else 0
    return kib / 2**10, on_gpu / 2**20


@pytest.mark.parametrize(
    ("device", "turns"),
    [
        ("cpu", 500),
        pytest.param("cpu", 20_000, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param("cuda", 150_000, marks=[pytest.mark.gpu, pytest.mark.timeout(1200)]),
    ],
)
def test_nothing_piles_up_and_no_token_changes_under_any_load(tmp_path: Path, device: str, turns: int) -> None:
    engine = poisoned_engine(save(tiny_model("grouped queries"), tmp_path), device=device, **OPTIONS)
    soak = Soak(engine, random.Random(turns))
    for _ in range(int(WARM_UP_SHARE * turns)):
        soak.turn()
    early = memory_mib(device)
    for _ in range(int((1 - WARM_UP_SHARE) * turns)):
        soak.turn()
    late = memory_mib(device)
    assert late[0] - early[0] < MOST_GROWTH_MIB, f"host memory grew from {early[0]:.1f} to {late[0]:.1f} MiB"
    assert late[1] <= early[1], f"GPU memory grew from {early[1]:.1f} to {late[1]:.1f} MiB"
    soak.drain()
    assert not soak.asks
    assert not soak.received
    assert soak.scheduler.free_blocks == engine.blocks
    assert soak.scheduler.outstanding_tokens == 0
    assert soak.scheduler.counters.preemptions, "the pool was never short"
    assert soak.scheduler.counters.cached_tokens, "nothing was shared"
    assert not soak.scheduler.counters.failed_steps
    assert all(soak.ended[finish] for finish in (Finish.STOP, Finish.LENGTH, Finish.ABORT))
    assert not soak.ended[Finish.ERROR]
    assert len(soak.remembered) == REMEMBERED
    for ask, told in soak.remembered:
        assert told.tokens == alone(engine, ask)
    engine.device.close()
