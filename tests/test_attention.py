"""Paged attention against the formula in float64, on a pool where everything unwritten is NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from checkpoint import ModelConfig, RopeScaling
from gpu_worker.attention import AttentionStep, Sight, TorchAttention
from gpu_worker.kv_cache import KVCache

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM = 6, 2, 16
CONFIG = ModelConfig(
    architecture="test",
    vocab_size=10,
    hidden_size=HEADS * DIM,
    num_layers=2,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=DIM,
    intermediate_size=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=RopeScaling(),
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    dtype="float32",
    eos_token_ids=(),
    bos_token_id=None,
)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def attention_in_float64(
    q: Tensor, k: Tensor, v: Tensor, position: int, window: int = 0, scale: float | None = None
) -> Tensor:
    """Return softmax(q·kᵀ·scale)·v of the queries at `position` … for keys [length, kv heads, d], head by head."""
    out = torch.empty(q.shape, dtype=torch.float64)
    scale = scale or 1 / math.sqrt(q.shape[2])
    for t in range(len(q)):
        seen = slice(max(0, position + t + 1 - window) if window else 0, position + t + 1)
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // k.shape[1])
            keys, values = k[seen, kv_head].double(), v[seen, kv_head].double()
            out[t, head] = torch.softmax(keys @ q[t, head].double() * scale, dim=0) @ values
    return out


class Rows:
    """Requests of given (position, count) with random q, k and v, their past already in a NaN-filled cache.

    What a window of layer 1 has left behind is NaN again.
    """

    def __init__(
        self,
        *rows: tuple[int, int],
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        window: int = 0,
        scale: float | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(len(rows) + sum(p + n for p, n in rows))
        self.rows, self.window, self.scale = rows, window, scale
        widest = max(-(-(p + n) // block_size) for p, n in rows)
        blocks = widest * len(rows) + 1
        # Tables in no order; entries past a row's end name blocks that stay NaN.
        order = torch.randperm(blocks - 1, generator=generator) + 1
        self.tables = order.to(torch.int32).view(len(rows), widest)
        self.cache = KVCache.allocate(CONFIG, blocks, block_size, dtype, CPU, fill=float("nan"))
        self.q = [torch.randn(n, HEADS, DIM, generator=generator).to(dtype) for _, n in rows]
        self.k = [torch.randn(p + n, KV_HEADS, DIM, generator=generator).to(dtype) for p, n in rows]
        self.v = [torch.randn(p + n, KV_HEADS, DIM, generator=generator).to(dtype) for p, n in rows]
        config = replace(CONFIG, layer_windows=(0, window), attention_scale=scale)
        self.attention = TorchAttention(config, block_size, dtype)
        for r, (position, _) in enumerate(rows):
            if position:
                past = self.attention.prepare(self.tables[r : r + 1], np.array([0]), np.array([position]))
                visible = slice(max(0, position - window + 1) if window else 0, position)
                self.cache.write(1, self.k[r][visible], self.v[r][visible], past.where[visible])

    def attend(self) -> tuple[Tensor, AttentionStep]:
        position, count = (np.array(column, np.int32) for column in zip(*self.rows, strict=True))
        step = self.attention.prepare(self.tables, position, count)
        now_k = torch.cat([k[p:] for k, (p, _) in zip(self.k, self.rows, strict=True)])
        now_v = torch.cat([v[p:] for v, (p, _) in zip(self.v, self.rows, strict=True)])
        self.cache.write(1, now_k, now_v, step.where)
        return self.attention.attend(1, torch.cat(self.q), self.cache, step), step

    def sight(self) -> Sight:
        """Attend, and return what layer 1 saw."""
        _, step = self.attend()
        return step.sights[self.attention.windows.index(self.window)]

    def expected(self) -> Tensor:
        columns = zip(self.q, self.k, self.v, self.rows, strict=True)
        return torch.cat(
            [attention_in_float64(q, k, v, p, self.window, self.scale) for q, k, v, (p, _) in columns],
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1)],
        [(14, 1), (15, 1), (16, 1), (17, 1), (0, 1)],
        [(63, 1), (63, 1)],
        [(3, 1), (700, 1), (90, 1), (250, 1), (1, 1)],
        [(0, 33)],
        [(0, 16), (0, 2), (0, 17)],
        [(16, 16), (5, 12), (31, 3)],
        [(20, 1), (0, 19), (300, 1), (129, 31), (2, 1)],
    ],
    ids=str,
)
def test_attention_equals_the_formula(rows: list[tuple[int, int]], block_size: int, dtype: torch.dtype) -> None:
    case = Rows(*rows, block_size=block_size, dtype=dtype)
    mixed, _ = case.attend()
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), case.expected(), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("window", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1), (5, 1), (6, 1), (7, 1), (40, 1)],
        [(90, 1)],
        [(31, 1), (32, 1), (33, 1), (200, 1)],
        [(0, 6), (0, 7), (0, 8), (0, 40)],
        [(3, 4), (3, 5), (30, 3), (31, 3), (100, 20)],
        [(20, 1), (0, 19), (300, 1), (129, 31), (2, 1)],
    ],
    ids=str,
)
def test_a_window_shows_its_last_positions_and_touches_nothing_older(
    rows: list[tuple[int, int]], block_size: int, window: int
) -> None:
    case = Rows(*rows, block_size=block_size, window=window)
    mixed, _ = case.attend()
    torch.testing.assert_close(mixed.double(), case.expected(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows", [[(20, 1), (9, 1)], [(0, 12), (5, 9)]], ids=str)
def test_a_scale_of_its_own_replaces_the_usual_one(rows: list[tuple[int, int]]) -> None:
    case = Rows(*rows, scale=0.7)
    mixed, _ = case.attend()
    torch.testing.assert_close(mixed.double(), case.expected(), rtol=0, atol=2e-6)


def test_what_lies_outside_the_window_is_not_gathered() -> None:
    sight = Rows((500, 1), (900, 1), (20, 1), (300, 10), window=40).sight()
    assert [(group.length, len(group.where)) for group in sight.decode] == [(40, 3 * 40)]
    assert [len(row.where) for row in sight.prefill] == [40 - 1 + 10]


def test_a_window_is_prepared_once_and_only_when_it_is_outgrown() -> None:
    table = torch.arange(1, 9, dtype=torch.int32)[None]
    attention = TorchAttention(replace(CONFIG, num_layers=5, layer_windows=(0, 8, 8, 100, 0)), 16, torch.float32)
    assert attention.windows == (0, 8, 100)
    for position, distinct in [(7, 1), (8, 2), (99, 2), (100, 3)]:
        step = attention.prepare(table, np.array([position]), np.array([1]))
        assert len({id(sight) for sight in step.sights}) == distinct
    assert TorchAttention(CONFIG, 16, torch.float32).windows == (0,)


def test_other_layers_are_not_touched() -> None:
    case = Rows((20, 1), (0, 5))
    case.attend()
    assert case.cache.k[0].isnan().all()
    assert case.cache.v[0].isnan().all()


def test_decode_rows_are_padded_to_at_most_twice_their_length() -> None:
    lengths = [2000, 1, 128, 129, 256, 257, 500, 1100, 40]
    sight = Rows(*[(length - 1, 1) for length in lengths]).sight()
    padded = sum(len(group.where) for group in sight.decode)
    assert padded <= sum(max(2 * length, 128) for length in lengths)
    assert [group.length for group in sight.decode] == [128, 256, 500, 2000]


def test_a_step_of_decode_rows_alike_is_one_batch_without_copies_of_queries() -> None:
    sight = Rows((64, 1), (70, 1), (99, 1)).sight()
    assert len(sight.decode) == 1
    assert sight.decode[0].query is None
    assert sight.prefill == ()
