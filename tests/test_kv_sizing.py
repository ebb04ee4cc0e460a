"""How large the KV cache gets: by arithmetic, and by what the largest steps take of a GPU's memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import CheckpointError, load_config
from gpu_worker import building
from gpu_worker.bad_words import BadWords
from gpu_worker.building import build_engine
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.gpu_memory import GPUReading, gpu_memory, read_gpu
from gpu_worker.kv_cache import bytes_per_block
from gpu_worker.kv_sizing import (
    BlockNeeds,
    GPUMemory,
    asked_blocks,
    blocks_on_a_cpu,
    blocks_on_a_gpu,
    check_room,
    graph_bytes,
    parameter_bytes,
)
from gpu_worker.largest_steps import BLOCKS, largest_plans, largest_steps
from gpu_worker.loading import load_weights
from gpu_worker.logprobs import SCORED_AT_A_TIME
from gpu_worker.runner import ModelRunner
from gpu_worker.sampler import Sampler
from gpu_worker.session import check_plan
from gpu_worker.weights import destinations
from protocol.messages import Plan, RowFlag
from tests.tiny_models import save, tiny_model

MEBI, GIBI = 2**20, 2**30
CPU = torch.device("cpu")
NEEDS = BlockNeeds(bytes=2 * MEBI, size=16, least=512, most=100_000, max_model_len=8192)
"""Of an 8B model in bfloat16: 1 GiB for a request of full length."""

MEMORY = GPUMemory(
    total=100 * GIBI, free=80 * GIBI, weights=16 * GIBI, activations=4 * GIBI, graphs=2 * GIBI, kernels=GIBI
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_model("grouped queries"), tmp_path / "model")


def config_of(folder: Path, **options: Any) -> EngineConfig:
    sizes: dict[str, Any] = {"max_num_seqs": 3, "max_model_len": 96, "block_size": 4, "max_batch_tokens": 40}
    return EngineConfig(model=str(folder), threads=1, **{"device": "cpu"} | sizes | options)


# ---------------------------------------------------------------------------------------------------------- arithmetic


def test_kv_gets_what_the_rest_leaves_of_the_share() -> None:
    left = (90 - 16 - 4 - 2 - 1) * GIBI
    assert blocks_on_a_gpu(NEEDS, MEMORY, 0.9) == left // NEEDS.bytes - 1
    assert blocks_on_a_gpu(NEEDS, MEMORY, 0.5) == (left - 40 * GIBI) // NEEDS.bytes - 1


def test_kv_gets_no_more_than_other_programs_leave() -> None:
    crowded = replace(MEMORY, free=30 * GIBI)
    assert blocks_on_a_gpu(NEEDS, crowded, 0.9) == (30 - 4 - 2) * GIBI // NEEDS.bytes - 1


def test_kv_gets_no_more_than_all_requests_can_use() -> None:
    assert blocks_on_a_gpu(replace(NEEDS, most=600), MEMORY, 0.9) == 600


def test_one_request_of_full_length_is_enough_and_less_is_refused_with_all_numbers() -> None:
    just = (16 + 4 + 2 + 1) * GIBI + (NEEDS.least + 1) * NEEDS.bytes
    assert blocks_on_a_gpu(NEEDS, replace(MEMORY, total=just), 1.0) == NEEDS.least
    with pytest.raises(CheckpointError) as caught:
        blocks_on_a_gpu(NEEDS, replace(MEMORY, total=24 * GIBI), 0.98)
    assert str(caught.value) == (
        "of the GPU's 24.0 GiB, 16.0 are weights, 4.0 for the largest step, 2.0 for CUDA graphs, 1.0 for kernels: "
        "of the 23.5 that --gpu-memory-utilization 0.98 allows, 0.5 are left for KV; one request of --max-model-len "
        "8192 needs 1.0"
    )
    with pytest.raises(CheckpointError, match="67.0 are left for KV; other programs leave 0.5 of that; one request"):
        blocks_on_a_gpu(NEEDS, replace(MEMORY, free=int(6.5 * GIBI)), 0.9)
    with pytest.raises(CheckpointError, match=" 0.0 are left for KV; one request"):
        blocks_on_a_gpu(NEEDS, MEMORY, 0.01)


def test_what_is_asked_for_goes_before_memory_if_one_request_fits(folder: Path) -> None:
    needs = replace(NEEDS, least=5)
    assert asked_blocks(config_of(folder), needs) is None
    assert asked_blocks(config_of(folder, kv_cache_blocks=7), needs) == 7
    assert asked_blocks(config_of(folder, kv_cache_gib=1.0), needs) == 512 - 1
    for few in ({"kv_cache_blocks": 4}, {"kv_cache_gib": 0.01}):
        with pytest.raises(
            CheckpointError, match="would have 4 blocks of 16 tokens .2.0 MiB each.*needs 5: lower that"
        ):
            asked_blocks(config_of(folder, **few), needs)
    with pytest.raises(CheckpointError, match="would have 0 blocks"):
        asked_blocks(config_of(folder, kv_cache_gib=1e-6), needs)


def test_what_is_asked_for_must_fit_beside_the_weights() -> None:
    check_room(511, NEEDS, 16 * GIBI, 0, 17 * GIBI)
    line = (
        "KV cache of 1.0 GiB, weights of 16.0 and 0.0 for CUDA graphs do not fit into the 17.0 GiB that the GPU has "
        "free: lower --kv-cache"
    )
    with pytest.raises(CheckpointError, match=line):
        check_room(512, NEEDS, 16 * GIBI, 0, 17 * GIBI)
    with pytest.raises(CheckpointError, match="for CUDA graphs do not fit"):
        check_room(511, NEEDS, 16 * GIBI, 1, 17 * GIBI)


def test_a_cpu_gives_half_of_what_is_free_but_4_gib_at_most_and_one_request_at_least() -> None:
    assert blocks_on_a_cpu(NEEDS, 6 * GIBI) == 3 * 512 - 1
    assert blocks_on_a_cpu(NEEDS, 100 * GIBI) == 4 * 512 - 1
    assert blocks_on_a_cpu(NEEDS, 0) == NEEDS.least
    assert blocks_on_a_cpu(replace(NEEDS, most=600), 100 * GIBI) == 600


def test_needs_are_those_of_the_model(folder: Path) -> None:
    model = load_config(folder)
    needs = BlockNeeds.of(config_of(folder), model, 97, torch.float32)
    assert needs.bytes == bytes_per_block(model, 4, torch.float32)
    assert (needs.size, needs.least, needs.most, needs.max_model_len) == (4, 24, 3 * 25, 97)


@pytest.mark.parametrize("variant", ["grouped queries", "tied embeddings", "biases everywhere"])
def test_the_bytes_of_parameters_are_known_before_they_are_loaded(variant: str, tmp_path: Path) -> None:
    folder = save(tiny_model(variant), tmp_path)
    config = load_config(folder)
    loaded = destinations(load_weights(folder, config, torch.bfloat16, CPU), config)
    assert parameter_bytes(config, torch.bfloat16) == sum(view.nbytes for view in loaded.values())


def test_graphs_take_a_pool_of_the_largest_and_something_each(folder: Path) -> None:
    model = load_config(folder)
    one, more, most, beyond = (graph_bytes(model, torch.bfloat16, 4, tokens) for tokens in (16, 32, 2048, 4096))
    a_token = (6 * 64 + 2 * (4 + 2) * 16 + 3 * model.intermediate_size) * 2
    assert (model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim) == (64, 4, 2, 16)
    assert one == 16 * a_token + (3 + 1) * 8 * MEBI
    assert more == 32 * a_token + (3 + 2) * 8 * MEBI
    assert beyond == most


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, float("nan")])
def test_a_share_is_more_than_nothing_and_no_more_than_all(share: float) -> None:
    with pytest.raises(ValueError, match="--gpu-memory-utilization must be more than 0 and at most 1, got"):
        EngineConfig(gpu_memory_utilization=share)


@pytest.mark.parametrize(
    ("beside", "problem"),
    [
        ({"kv_cache_gib": 1.0}, "give --gpu-memory-utilization or --kv-cache-gib, not both"),
        ({"kv_cache_blocks": 9}, "give --gpu-memory-utilization or --kv-cache-blocks, not both"),
        ({"device": "cpu"}, "--gpu-memory-utilization is of a GPU's memory, and --device is cpu"),
    ],
)
def test_a_share_that_decides_nothing_is_refused(beside: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        EngineConfig(gpu_memory_utilization=0.5, **beside)


def test_a_share_of_a_gpu_is_refused_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CheckpointError, match="is of a GPU's memory, and a CPU computes"):
        build_engine(EngineConfig(model=str(folder), gpu_memory_utilization=0.5), lambda _: None)


# ------------------------------------------------------------------------------------------------------- largest steps


@pytest.mark.parametrize(("slots", "tokens", "length"), [(3, 40, 96), (4, 4, 96), (3, 500, 96), (1, 40, 2), (5, 13, 9)])
def test_the_largest_steps_have_all_rows_and_all_tokens_or_the_longest_context(
    slots: int, tokens: int, length: int
) -> None:
    wide, long = largest_plans(slots, tokens, length, 4)
    assert wide.slot.tolist() == list(range(slots))
    assert int(wide.count.sum()) == min(tokens, slots * (length - 1))
    assert int(wide.count.max()) - int(wide.count.min()) <= 1
    assert len(long.slot) == 1
    assert int(long.count[0]) == min(tokens, length - 1)
    for plan in (wide, long):
        plan.check()
        assert (plan.flags == RowFlag.SAMPLE).all()
        assert (plan.temperature > 0).all()
        assert (plan.top_p < 1).all()
        assert (plan.adjusting is not None) == (plan is wide)
        ends = plan.position + plan.count
        assert int(ends.max()) <= length - 1
        for slot, end in zip(plan.slot, ends, strict=True):
            own = plan.table_index[plan.table_slot == slot]
            assert own.tolist() == list(range(-(-int(end) // 4)))
    assert int((long.position + long.count)[0]) == length - 1
    assert wide.scored_token is not None
    assert len(wide.scored_token) == min(tokens, slots * (length - 1), SCORED_AT_A_TIME)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    made = build_engine(config_of(folder, kv_cache_blocks=24), lambda _: None)
    yield made
    made.device.close()


def test_the_largest_steps_are_computed_and_sampled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    random: list[tuple[int, bool]] = []
    worded: list[int] = []
    run, sample, ban = ModelRunner.run, Sampler.sample, BadWords.ban

    def watched(self: ModelRunner, plan: Plan, *rest: Any) -> None:
        run(self, plan, *rest)
        computed.append(plan.step)

    def sampled(self: Sampler, logits: torch.Tensor, *rest: Any) -> Any:
        random.append((len(logits), rest[2]))
        return sample(self, logits, *rest)

    def banned(self: BadWords, logits: torch.Tensor, row: torch.Tensor) -> None:
        worded.append(len(row))
        ban(self, logits, row)

    monkeypatch.setattr(ModelRunner, "run", watched)
    monkeypatch.setattr(Sampler, "sample", sampled)
    monkeypatch.setattr(BadWords, "ban", banned)
    plans = []
    for plan in largest_steps(lambda: engine):
        plans.append(plan)
        assert computed == [one.step for one in plans], "each is done before the next begins"
    assert computed == [1, 2]
    assert random == [(3, True), (1, True)]
    assert worded == [3], "every row's lines are looked at in the wide one"
    for plan in plans:
        check_plan(plan, engine)


def test_a_largest_step_that_fails_is_one_line_and_no_traceback(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nmore")

    monkeypatch.setattr(ModelRunner, "run", fail)
    with caplog.at_level(logging.INFO), pytest.raises(CheckpointError) as caught:
        list(largest_steps(lambda: engine))
    assert str(caught.value) == (
        "the largest step, of 40 tokens in 3 rows of up to 14, fails (OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 20 GiB): lower --max-batch-tokens, --max-num-seqs or --max-model-len"
    )
    assert not caplog.records
    assert logging.root.manager.disable == logging.NOTSET


# ------------------------------------------------------------------------------------------ a GPU, as torch has it


@dataclass
class PretendedGPU:
    """What torch.cuda says of a GPU on which somebody has 10 bytes and torch what it is made to take."""

    total: int = 1000
    others: int = 10
    reserved: int = 0
    peak: int = 0
    kept: int = 0  # of `reserved`, what nobody uses
    asked: list[str] = field(default_factory=list)

    def take(self, size: int, keep: int = 0) -> None:
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        self.kept += size - keep

    def mem_get_info(self, _: torch.device) -> tuple[int, int]:
        return self.total - self.others - self.reserved, self.total

    def memory_reserved(self, _: torch.device) -> int:
        return self.reserved

    def max_memory_reserved(self, _: torch.device) -> int:
        return self.peak

    def reset_peak_memory_stats(self, _: torch.device) -> None:
        self.peak = self.reserved

    def empty_cache(self) -> None:
        self.reserved, self.kept = self.reserved - self.kept, 0


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> PretendedGPU:
    gpu = PretendedGPU()
    for name in ("mem_get_info", "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    return gpu


def test_what_steps_take_at_their_peak_is_told_from_weights_and_kernels(
    engine: Engine, pretended: PretendedGPU
) -> None:
    before = read_gpu(CPU)
    pretended.take(300, keep=200)  # weights, and what loading them left behind

    def steps() -> Iterator[int]:
        pretended.take(150)
        yield 1
        assert pretended.reserved == 200, "the next step begins with nothing kept"
        pretended.others += 7  # a kernel is loaded
        pretended.take(100)
        yield 2

    memory = gpu_memory(engine.device, before, steps(), graphs=33)
    assert memory == GPUMemory(total=1000, free=1000 - 10 - 7 - 200, weights=200, activations=150, graphs=33, kernels=7)
    assert memory.within(0.9) == 900 - 200 - 150 - 33 - 7
    assert memory.there == 783 - 150 - 33


def test_memory_that_is_too_short_for_the_largest_steps_is_one_line(engine: Engine, pretended: PretendedGPU) -> None:
    def short(error: Exception) -> Iterator[int]:
        yield 1
        raise error

    before = GPUReading(1000, 900, 0)
    with pytest.raises(CheckpointError, match=r"the largest step does not fit into memory \(no room\)$"):
        gpu_memory(engine.device, before, short(torch.OutOfMemoryError("no room\nat all")), 0)
    with pytest.raises(RuntimeError, match="an illegal"):
        gpu_memory(engine.device, before, short(RuntimeError("an illegal instruction")), 0)


def test_a_gpus_pool_is_sized_by_the_largest_steps(
    engine: Engine, folder: Path, pretended: PretendedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_config(folder)
    config = config_of(folder, device="auto", gpu_memory_utilization=0.5)
    needs = BlockNeeds.of(config, model, 96, torch.float32)
    pretended.total = 200 * needs.bytes
    before = GPUReading(pretended.total, pretended.total - 10, 0)
    pretended.take(10 * needs.bytes, keep=10 * needs.bytes)
    run = ModelRunner.run

    def taking(self: ModelRunner, *rest: Any) -> None:
        pretended.take(20 * needs.bytes)
        run(self, *rest)

    monkeypatch.setattr(ModelRunner, "run", taking)
    told: list[str] = []

    def to_try() -> Engine:
        return replace(engine, blocks=BLOCKS)

    def sized(config: EngineConfig, needs: BlockNeeds = needs, gathered: float = 0.0) -> int:
        return building._kv_blocks(
            config,
            needs,
            engine.device,
            before,
            5 * needs.bytes,
            gathered,
            to_try,
            told.append,
        )

    assert sized(config, replace(needs, most=1000)) == 100 - 10 - 20 - 5 - 1
    assert sized(config, replace(needs, most=1000), gathered=0.3) == (100 - 10 - 20 - 5) / 1.3 // 1 - 1
    assert told[0].startswith("of the GPU's 0.0 GiB, 0.0 are weights, ")
    assert sized(config_of(folder), needs) == 3 * 24, "what all requests can use"
    told.clear()
    assert sized(config_of(folder, kv_cache_blocks=30)) == 30
    assert not told, "no step is computed for a pool whose size was given"
    with pytest.raises(CheckpointError, match="--gpu-memory-utilization 0.2 allows"):
        sized(config_of(folder, device="auto", gpu_memory_utilization=0.2))


def test_too_few_blocks_are_refused_before_anything_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Any:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(building._Builder, "_load", load)
    with pytest.raises(CheckpointError, match="would have 23 blocks of 4 tokens"):
        build_engine(config_of(folder, kv_cache_blocks=23), lambda _: None)


# ------------------------------------------------------------------------------------------------------------ on a GPU


def on_a_gpu(folder: Path, told: list[str], **options: Any) -> Engine:
    return build_engine(replace(config_of(folder, device="cuda", **options), threads=None), told.append)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_on_a_gpu_the_pool_has_what_all_requests_can_use(folder: Path, eager: bool) -> None:
    told: list[str] = []
    engine = on_a_gpu(folder, told, enforce_eager=eager)
    assert engine.blocks == 3 * 24
    assert any("for the largest step" in line for line in told)
    engine.device.close()


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu_a_share_is_kept_to(folder: Path) -> None:
    model = load_config(folder)
    rows = {"max_num_seqs": 2**13, "max_batch_tokens": 2**13, "max_model_len": model.longest_model_len}
    engine = on_a_gpu(folder, [], **rows, enforce_eager=True, gpu_memory_utilization=0.02)
    kv, total = (engine.blocks + 1) * bytes_per_block(model, 4, torch.float32), torch.cuda.mem_get_info()[1]
    assert 0.005 * total < kv < 0.02 * total
    assert engine.blocks < 2**13 * -(-model.longest_model_len // 4), "it is the share that bounds it"
    engine.device.close()


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu_too_much_is_refused_in_one_line(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="that --gpu-memory-utilization 0.0001 allows, 0.0 are left for KV"):
        on_a_gpu(folder, [], gpu_memory_utilization=1e-4)
    with pytest.raises(CheckpointError, match="do not fit into the .* GiB that the GPU has free"):
        on_a_gpu(folder, [], kv_cache_gib=5000.0)
