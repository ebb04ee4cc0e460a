"""Steps by kernels over pages: the columns that they are told, and the tokens that they come to.

Without a GPU the kernels run in Triton's interpreter, without graphs.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint import CheckpointError, load_config
from gpu_worker.adjusted_rows import AdjustedRows
from gpu_worker.backends import LARGEST_HEAD, choose_backend
from gpu_worker.cpu_device import CPUDevice
from gpu_worker.paged_columns import PagedShape, PagedStep, aligned
from gpu_worker.staging import StagingBuffer
from protocol.messages import Plan, RowFlag
from tests.core_loop import submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.scores import assert_same_scores
from tests.tiny_models import VOCAB, save, tiny_model

OPTIONS = {"max_num_seqs": 5, "max_model_len": 96, "block_size": 4, "max_batch_tokens": 24, "kv_cache_blocks": 40}
PADDING = 7
CPU = torch.device("cpu")


class Padded:
    """Every column is padded by two; a tile has four tokens."""

    padding, tile_tokens = PADDING, 4

    def decode_shape(self, rows: int) -> PagedShape:
        return PagedShape(rows + 2, 0, None)

    def mixed_shape(self, tokens: int, decode_rows: int, tiles: int) -> PagedShape:
        return PagedShape(tokens + 2, decode_rows + 2, tiles + 2)


def plan(rows: list[tuple[int, int, int, int]], tokens: list[int], tables: list[tuple[int, int, int]]) -> Plan:
    """Rows are (slot, position, count, flags)."""
    none, numbers = np.zeros(0, np.uint32), np.zeros(0, np.float32)
    slot, position, count, flags = (np.array(column) for column in zip(*rows, strict=True))
    table = [np.array(column, np.uint32) for column in zip(*tables, strict=True)] if tables else [none] * 3
    return Plan(
        session=1,
        step=1,
        settled=0,
        slot=slot.astype(np.uint32),
        position=position.astype(np.uint32),
        count=count.astype(np.uint32),
        flags=flags.astype(np.uint8),
        token=np.array(tokens, np.uint32),
        table_slot=table[0],
        table_index=table[1],
        table_block=table[2],
        begin_slot=none,
        temperature=numbers,
        top_k=none,
        top_p=numbers,
        min_p=numbers,
        seed=np.zeros(0, np.uint64),
    )


def staged(some: Plan) -> tuple[StagingBuffer, Any]:
    device = CPUDevice(1)
    try:
        buffer = StagingBuffer(
            device, 64, PADDING, 100, 10, AdjustedRows(PADDING), np.zeros(PADDING, np.uint8), Padded()
        )
        _, columns = buffer.stage(some)
        buffer.copy()
        return buffer, columns
    finally:
        device.close()


def lists(step: PagedStep) -> list[list[int]]:
    return [view.tolist() for view in step.shape.views(step.whole)]


CARRY = int(RowFlag.CARRY | RowFlag.SAMPLE)
SAMPLE = int(RowFlag.SAMPLE)


def test_a_decode_step_is_slots_positions_and_lengths_with_padding_behind() -> None:
    _, columns = staged(plan([(3, 9, 1, CARRY), (0, 4, 1, CARRY)], [], [(0, 1, 8)]))
    step = columns.step
    assert lists(step) == [
        [0, 7, 7, 7], [1, 0, 0, 0], [8, 0, 0, 0], [-1] * 4, [9, 4, 0, 0], [3, 0, 7, 7], [10, 5, 0, 0]
    ]  # fmt: skip
    assert columns.samples is None
    assert columns.tables is None
    samples = step.samples(2)
    assert samples.slot.tolist() == [3, 0]
    assert samples.position.tolist() == [10, 5]


def test_rows_of_one_token_are_decode_rows_and_others_are_cut_into_tiles() -> None:
    rows = [(2, 5, 1, CARRY), (0, 8, 6, SAMPLE), (1, 0, 3, 0), (4, 2, 1, SAMPLE)]
    _, columns = staged(plan(rows, [10, 11, 12, 13, 14, 15, 20, 21, 22, 30], []))
    assert lists(columns.step)[3:] == [
        [-1, 10, 11, 12, 13, 14, 15, 20, 21, 22, 30, -1, -1],
        [5, 8, 9, 10, 11, 12, 13, 0, 1, 2, 2, 0, 0],
        [2, 0, 0, 0, 0, 0, 0, 1, 1, 1, 4, 7, 7],
        [0, 10, 0, 0],  # decode rows: tokens,
        [2, 4, 7, 7],  # slots
        [6, 3, 0, 0],  # and lengths
        [1, 5, 7, 0, 0],  # tiles: their first tokens,
        [4, 2, 3, 0, 0],  # how many they have,
        [0, 0, 1, 7, 7],  # slots
        [8, 12, 0, 0, 0],  # and positions
    ]
    assert columns.samples.at.tolist() == [0, 6, 10]
    assert columns.samples.slot.tolist() == [2, 0, 4]
    assert columns.samples.position.tolist() == [6, 14, 3]


def test_more_new_blocks_than_tokens_are_written_apart() -> None:
    tables = [(0, index, 9 + index) for index in range(5)]
    _, columns = staged(plan([(0, 19, 1, SAMPLE)], [6], tables))
    assert columns.tables.block.tolist() == [9, 10, 11, 12, 13]
    assert lists(columns.step)[0] == [7, 7, 7]
    _, columns = staged(plan([(0, 19, 1, SAMPLE)], [6], tables[:3]))
    assert columns.tables is None
    assert lists(columns.step)[2] == [9, 10, 11]


def test_columns_begin_where_kernels_expect_them() -> None:
    shape = PagedShape(7, 3, 5)
    whole = torch.arange(shape.size, dtype=torch.int32)
    views = shape.views(whole)
    assert [len(view) for view in views] == [7] * 6 + [3] * 3 + [5] * 4
    assert all(int(view[0]) % 4 == 0 for view in views)
    assert shape.size == 6 * aligned(7) + 3 * aligned(3) + 4 * aligned(5)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["Qwen3", pytest.param("Ministral", marks=pytest.mark.gpu)])
def test_tokens_are_those_of_torchs_attention(tmp_path: Path, variant: str) -> None:
    model = save(tiny_model(variant), tmp_path)
    reference = poisoned_engine(model, **OPTIONS)
    engine = poisoned_engine(model, attention_backend="triton", device="auto", **OPTIONS)
    asks = [
        submit(0, [3, 4, 5], 4, ignore_eos=True, repetition_penalty=1.3, temperature=0.9, seed=5, logprobs=2),
        submit(1, list(range(3, 15)), 4, ignore_eos=True, temperature=0.8, seed=1),
        submit(2, list(range(3, 24)), 4, ignore_eos=True, frequency_penalty=0.7, prompt_logprobs=2),
    ]
    loop = RealLoop(engine, 2)
    for ask in asks:
        loop.submit(ask)
        loop.step()
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == [alone(reference, ask) for ask in asks]
    scored = RealLoop(reference, 1)
    scored.submit(asks[2])
    scored.drain()
    assert_same_scores(loop.received[2].scores, scored.received[2].scores)
    for each in (reference, engine):
        each.device.close()


def compiled() -> int:
    """Return how many kernels Triton has compiled for ours."""
    from triton.runtime import JITFunction

    from gpu_worker import (
        drawing,
        fused_ops,
        kept_prefix,
        likeliest,
        paged_decode,
        paged_prefill,
        skinny_linear,
        step_begin,
    )

    modules = (
        drawing, fused_ops, kept_prefix, likeliest, paged_decode, paged_prefill, skinny_linear, step_begin,
    )  # fmt: skip
    found = [each for module in modules for each in vars(module).values() if isinstance(each, JITFunction)]
    return sum(len(cache[0]) for each in found for cache in each.device_caches.values())


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("dtype", "tokens"), [("float32", 400), ("bfloat16", 400), ("bfloat16", 100)])
def test_nothing_is_compiled_or_captured_once_it_is_ready(tmp_path: Path, eager: bool, dtype: str, tokens: int) -> None:
    options = {**OPTIONS, "max_num_seqs": 40, "max_batch_tokens": tokens, "kv_cache_blocks": 900}
    engine = poisoned_engine(
        save(tiny_model("grouped queries"), tmp_path), device="cuda", dtype=dtype, enforce_eager=eager, **options
    )
    paged, dice = engine.runner.paged, random.Random(1)
    assert paged is not None
    graphs, before = len(paged._graphs) + len(paged._draws), compiled()
    assert (graphs > 0) != eager
    loop = RealLoop(engine, 2)
    for number in range(60):
        prompt = [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 80))]
        heat, top_p = dice.choice([(0.0, 1.0), (0.9, 1.0), (0.9, 0.8)] if number < 40 else [(0.9, 1.0)])
        ask = submit(number, prompt, dice.randint(1, 15), temperature=heat, ignore_eos=True)
        loop.submit(replace(ask, top_p=top_p))
        for _ in range(dice.randrange(3)):
            loop.step()
    loop.drain()
    assert compiled() == before
    assert len(paged._graphs) + len(paged._draws) == graphs
    engine.device.close()


def test_who_attends_is_chosen_by_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_config(save(tiny_model("grouped queries"), tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert choose_backend("auto", model, CPU) == ("torch", "")
    with pytest.raises(CheckpointError, match="--attention-backend triton needs a GPU"):
        choose_backend("triton", model, CPU)
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert choose_backend("auto", model, gpu) == ("triton", "")
    assert choose_backend("torch", model, gpu) == ("torch", "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    name, why = choose_backend("auto", model, gpu)
    assert name == "torch"
    assert "7.5" in why
    wide = load_config(save(tiny_model("grouped queries", head_dim=2 * LARGEST_HEAD), tmp_path / "wide"))
    name, why = choose_backend("triton", wide, gpu)
    assert name == "torch"
    assert str(2 * LARGEST_HEAD) in why
