"""The kernel for several tokens a row against float64, over a pool whose places beyond each row are NaN.

Without a GPU it runs in Triton's interpreter: fewer shapes, since it is slow.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_worker.attention import AttentionShape
from gpu_worker.kv_cache import KVCache
from gpu_worker.paged_columns import cut_tiles
from tests.test_paged_decode import DEVICE, INTERPRETED, SHAPES, TOLERANCE, Case, on_a_gpu

pytestmark = pytest.mark.slow

ROWS = [(0, 2), (0, 16), (0, 33), (1, 64), (15, 3), (16, 130), (63, 1), (200, 1), (100, 90), (300, 5), (0, 200)]
"""Position and number of tokens of each row."""


class Shape:
    """What attention must know of a model."""

    attention_scale = None

    def __init__(self, kv_heads: int, head_dim: int, window: int):
        self.num_layers, self.num_kv_heads, self.head_dim = 1, kv_heads, head_dim
        self.layer_windows = (window,) if window else ()


def attended(case: Case, shape: tuple[int, int, int], rows: list[tuple[int, int]], window: int, padding: int) -> None:
    from gpu_worker.paged_attention import DecodeRows, PagedAttention, PagedAttentionStep
    from gpu_worker.paged_prefill import Tiles

    heads, kv_heads, head_dim = shape
    dtype = case.keys.dtype
    of_model: AttentionShape = Shape(kv_heads, head_dim, window)
    attention = PagedAttention(of_model, heads, case.block_size, dtype, len(rows) + padding, torch.device(DEVICE))
    position, count = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    first = np.cumsum(count) - count
    slots = case.slots.cpu().numpy()
    single, several = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
    of, offset, length = cut_tiles(count[several], attention.tile_tokens)
    row = several[of]

    def column(values: np.ndarray, fill: int) -> torch.Tensor:
        return torch.tensor([*values, *[fill] * padding], dtype=torch.int32, device=DEVICE)

    tiles = Tiles(
        column(first[row] + offset, 0), column(length, 0), column(slots[row], 0), column(position[row] + offset, 0)
    )
    decode = DecodeRows(column(first[single], 0), column(slots[single], 0), column(position[single] + 1, 0))
    where = torch.zeros(int(count.sum()), dtype=torch.int64, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(2)
    q = torch.randn((int(count.sum()), heads, head_dim), device=DEVICE, generator=generator).to(dtype)
    cache = KVCache((case.keys,), (case.values,), case.block_size)
    out = attention.attend(0, q, cache, PagedAttentionStep(where, case.tables, decode, tiles))
    scale = head_dim**-0.5
    for index, (begin, tokens) in enumerate(rows):
        blocks = case.tables[case.slots[index]].long()
        end = begin + tokens
        k, v = (
            x[blocks].flatten(0, 1)[:end].double().repeat_interleave(case.group, 1) for x in (case.keys, case.values)
        )
        own = q[first[index] : first[index] + tokens].double()
        score = torch.einsum("thd,lhd->htl", own, k) * scale
        seen, at = torch.arange(end, device=DEVICE), torch.arange(begin, end, device=DEVICE)[:, None]
        hidden = (seen > at) | ((seen <= at - window) if window else False)
        mixed = torch.einsum("htl,lhd->thd", score.masked_fill(hidden, float("-inf")).softmax(-1), v)
        found = out[first[index] : first[index] + tokens]
        assert found.isfinite().all(), (begin, tokens)
        assert (found.double() - mixed).abs().max() < 2 * TOLERANCE[dtype], (begin, tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, on_a_gpu(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("shape", [s if s in INTERPRETED else on_a_gpu(s) for s in SHAPES], ids=str)
@pytest.mark.parametrize("window", [0, 40])
def test_rows_of_any_length_anywhere_are_as_in_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, window: int
) -> None:
    if DEVICE == "cpu" and (dtype == torch.float32) != bool(window):
        pytest.skip("the interpreter is slow: on a GPU")
    rows = ROWS if DEVICE != "cpu" else ROWS[:8]
    case = Case(*shape, [begin + tokens for begin, tokens in rows], dtype)
    attended(case, shape, rows, window, padding=3)


@pytest.mark.parametrize("size", [4, on_a_gpu(32), on_a_gpu(256)])
def test_blocks_of_any_size_serve(size: int) -> None:
    rows = [(0, 5), (7, 1), (3, 40)]
    case = Case(4, 2, 64, [begin + tokens for begin, tokens in rows], torch.float16, size)
    attended(case, (4, 2, 64), rows, 0, padding=0)


def test_rows_are_cut_into_tiles_that_cover_them() -> None:
    row, offset, tokens = cut_tiles(np.array([1, 4, 9, 2, 8], np.int32), 4)
    assert row.tolist() == [0, 1, 2, 2, 2, 3, 4, 4]
    assert offset.tolist() == [0, 0, 0, 4, 8, 0, 0, 4]
    assert tokens.tolist() == [1, 4, 4, 4, 1, 2, 4, 4]
