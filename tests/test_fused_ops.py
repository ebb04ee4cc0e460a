"""The fused kernels against the same in float64, from products that are whole and from partial sums of them.

Without a GPU they run in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.kv_cache import KVCache
from gpu_worker.paged_columns import CARRIED

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2.4e-2}
ON_A_GPU = [pytest.param(dtype, marks=pytest.mark.gpu) for dtype in (torch.float16, torch.bfloat16)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, *ON_A_GPU], ids=str)
PARTS = pytest.mark.parametrize("parts", [0, 1, 3])
EPSILON = 1e-5


def ops(dtype: torch.dtype, share: float = 1.0) -> Any:
    from gpu_worker.fused_ops import FusedOps

    return FusedOps(EPSILON, share, dtype, DEVICE)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, device=DEVICE, generator=generator).to(dtype)


def product(rows: int, columns: int, parts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a product as it may come, and what it is in float64."""
    if not parts:
        whole = drawn(rows, columns, dtype=dtype, seed=3)
        return whole, whole.double()
    some = drawn(parts, rows, columns, dtype=torch.float32, seed=3) / parts**0.5
    return some, some.double().sum(0)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()


def close(found: Tensor, expected: Tensor) -> None:
    assert found.isfinite().all()
    error = (found.double() - expected).abs() / (1 + expected.abs())
    assert error.max() < TOLERANCE[found.dtype], float(error.max())


@DTYPES
@PARTS
@pytest.mark.parametrize("hidden", [7, 64, 576])
def test_a_product_is_added_and_the_sum_is_normed(dtype: torch.dtype, parts: int, hidden: int) -> None:
    residual, weight = drawn(5, hidden, dtype=dtype), drawn(hidden, dtype=dtype, seed=1)
    delta, exact = product(5, hidden, parts, dtype)
    total = residual.double() + 0.5 * exact
    normed = ops(dtype, share=0.5).add_norm(residual, delta, weight)
    close(residual, total)
    close(normed, norm(residual.double(), weight))


@DTYPES
def test_with_nothing_to_add_the_residual_stays_as_it_is(dtype: torch.dtype) -> None:
    residual, weight = drawn(5, 96, dtype=dtype), drawn(96, dtype=dtype, seed=1)
    before = residual.clone()
    close(ops(dtype).add_norm(residual, None, weight), norm(before.double(), weight))
    assert torch.equal(residual, before)


@DTYPES
@PARTS
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "pairs"), [(4, 2, 16, 8), (9, 3, 64, 32), (3, 3, 20, 4), (2, 1, 9, 4)]
)
@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize("rotated", [False, True], ids=["", "rotated"])
def test_queries_come_out_and_keys_and_values_are_put_in_their_places(
    dtype: torch.dtype, parts: int, heads: int, kv_heads: int, head_dim: int, pairs: int, normed: bool, rotated: bool
) -> None:
    if DEVICE.type == "cpu" and (parts == 1 or normed != rotated):
        pytest.skip("the interpreter is slow: on a GPU")
    qkv, exact = product(3, (heads + 2 * kv_heads) * head_dim, parts, dtype)
    k, v = (torch.full((6, 4, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE) for _ in "kv")
    cache = KVCache((k,), (v,), 4)
    norms = (drawn(head_dim, dtype=dtype, seed=5), drawn(head_dim, dtype=dtype, seed=6))
    table = drawn(50, 2 * pairs, dtype=torch.float32, seed=7)
    positions = torch.tensor([0, 49, 17], dtype=torch.int32, device=DEVICE)
    where = torch.tensor([23, 4, 9], device=DEVICE)
    fused = ops(dtype)
    turn = fused.rotation(table, positions) if rotated else None
    queries = fused.place(qkv, norms if normed else None, turn, where, cache, 0, heads)
    each = exact.view(3, -1, head_dim)
    q, k, v = each[:, :heads], each[:, heads : heads + kv_heads], each[:, heads + kv_heads :]
    if normed:
        q, k = norm(q, norms[0]), norm(k, norms[1])
    if rotated:
        cos, sin = table[positions.long()].double()[:, None].chunk(2, -1)
        q, k = (
            torch.cat(
                (
                    x[..., :pairs] * cos - x[..., pairs : 2 * pairs] * sin,
                    x[..., pairs : 2 * pairs] * cos + x[..., :pairs] * sin,
                    x[..., 2 * pairs :],
                ),
                -1,
            )
            for x in (q, k)
        )
    for found, expected in ((queries, q), (cache.k[0].flatten(0, 1)[where], k), (cache.v[0].flatten(0, 1)[where], v)):
        close(found, expected)
    untouched = torch.ones(24, dtype=torch.bool, device=DEVICE)
    untouched[where] = False
    assert cache.k[0].flatten(0, 1)[untouched].isnan().all()
    assert cache.v[0].flatten(0, 1)[untouched].isnan().all()


@DTYPES
@PARTS
@pytest.mark.parametrize("wide", [8, 1500])
def test_up_is_gated(dtype: torch.dtype, parts: int, wide: int) -> None:
    gate_up, exact = product(4, 2 * wide, parts, dtype)
    gate, up = exact.chunk(2, -1)
    close(ops(dtype).gate(gate_up), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("columns", [40, 64, 130, 6144])
@pytest.mark.parametrize("inner", [64, 576, 896, 1024, 4096, 14336])
def test_a_matrix_is_cut_so_that_nothing_is_left_over(columns: int, inner: int) -> None:
    from gpu_worker.skinny_linear import COLUMN_BLOCK, PROGRAMS, cut_for

    cut = cut_for(columns, inner)
    assert cut is not None
    assert inner % (cut.parts * cut.bite) == 0
    assert cut.early % 16 == 0
    assert cut.early <= 2 * inner // cut.parts
    assert cut.parts == 1 or -(-columns // COLUMN_BLOCK) * cut.parts < 2 * max(PROGRAMS, cut.parts * columns / 32)


def test_a_matrix_that_cannot_be_cut_is_left_to_torch() -> None:
    from gpu_worker.skinny_linear import cut_for

    assert cut_for(128, 100) is None


@pytest.mark.parametrize("shared_memory", [227 * 1024, 163 * 1024, 99 * 1024, 64 * 1024])
@pytest.mark.parametrize(("columns", "inner"), [(576, 1536), (1024, 3072), (4096, 4096), (28672, 4096)])
def test_what_is_loaded_ahead_fits_into_any_gpus_shared_memory(shared_memory: int, columns: int, inner: int) -> None:
    from gpu_worker.skinny_linear import COLUMN_BLOCK, SKINNY, SKINNY_IF_NARROW, cut_for, fitted

    cut = cut_for(columns, inner)
    assert cut is not None
    for rows in (SKINNY, SKINNY_IF_NARROW):
        fits = fitted(cut, rows, shared_memory)
        assert fits.stages * 2 * (COLUMN_BLOCK + rows) * fits.bite < shared_memory
        assert inner % (fits.parts * fits.bite) == 0
        assert fits.stages > 1


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize(("rows", "columns", "inner"), [(1, 40, 64), (5, 130, 576), (33, 64, 256), (128, 70, 128)])
def test_partial_sums_add_up_to_the_product(
    dtype: torch.dtype, biased: bool, rows: int, columns: int, inner: int
) -> None:
    from gpu_worker.skinny_linear import projection

    x, weight = drawn(rows, inner, dtype=dtype), drawn(columns, inner, dtype=dtype, seed=1)
    bias = drawn(columns, dtype=dtype, seed=2) if biased else None
    parts = projection(weight, bias)(x)
    assert parts.shape[1:] == (rows, columns)
    assert parts.dtype == torch.float32
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert (parts.double().sum(0) - exact).abs().max() < 1e-5 * inner


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("vocabulary", [5, 4096, 9000])
def test_the_likeliest_token_is_chosen_and_a_row_that_is_unusable_says_so(dtype: torch.dtype, vocabulary: int) -> None:
    from gpu_worker.likeliest import Likeliest
    from gpu_worker.sampler import greedy, packed

    logits = drawn(9, vocabulary, dtype=dtype)
    logits[1] = 2.0  # all alike
    logits[2, -1] = 1000
    logits[3, vocabulary // 2] = float("nan")
    logits[4, 0] = float("inf")
    logits[5] = float("-inf")
    logits[6] = float("-inf")
    logits[6, 3] = -5
    logits[7, 1] = logits[7, vocabulary - 1] = 900
    slots = torch.tensor([8, 0, 3, 1, 2, 5, 6, 7, 4], dtype=torch.int32, device=DEVICE)
    last_token = torch.full((11,), 77, device=DEVICE)
    sampled = torch.full((9,), -1, device=DEVICE)
    Likeliest(9, vocabulary, DEVICE).choose(logits, slots, last_token, sampled)
    tokens, statuses = greedy(logits.float())
    assert torch.equal(sampled, packed(tokens, statuses))
    assert statuses.sum() == 3 * statuses[3]
    assert torch.equal(last_token[slots.long()], tokens)
    assert last_token[9:].tolist() == [77, 77]


def test_a_step_begins_with_the_right_tokens_in_the_right_places() -> None:
    from gpu_worker.step_begin import begin

    embedding, last_token = drawn(30, 48, dtype=torch.float32), torch.tensor([7, 11, 13], device=DEVICE)
    tables = torch.tensor([[5, 2, 9], [1, 8, 3], [0, 0, 0]], dtype=torch.int32, device=DEVICE)
    tokens, positions, slots = (
        torch.tensor(column, dtype=torch.int32, device=DEVICE)
        for column in ([4, CARRIED, 29, CARRIED], [0, 11, 5, 0], [0, 1, 0, 2])
    )
    embedded, where = begin(tokens, positions, slots, last_token, tables, embedding, 2.0, 4)
    assert torch.equal(embedded, 2 * embedding[[4, 11, 29, 13]])
    assert where.tolist() == [20, 3 * 4 + 3, 2 * 4 + 1, 0]


def test_entries_of_block_tables_are_written() -> None:
    from gpu_worker.step_begin import write_tables

    tables = torch.zeros((4, 200), dtype=torch.int32, device=DEVICE)
    order = torch.randperm(800, device=DEVICE)[:300]
    slot, index, block = ((x).int() for x in (order // 200, order % 200, torch.arange(1, 301, device=DEVICE)))
    write_tables(tables, slot, index, block)
    assert torch.equal(tables.flatten()[order], block)
    assert (tables != 0).sum() == 300
