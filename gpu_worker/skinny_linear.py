# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""x·Wᵀ for a few rows of x: reading W at the speed of memory is all that counts.

    W [N, K]     K ──────────────►          program (n, p): rows n of W, slice p of K
           n 0 │ p 0 │ p 1 │ … │
           n 1 │     │     │   │            out[p, :, n] = x[:, slice p] · W[n, slice p]ᵀ
             … └─────┴─────┴───┘

A matrix with few rows is cut along K, too, or most multiprocessors would have nothing to read. The partial sums are not
added up here: whoever reads the product does that on the way (`fused_ops`). And the first columns of W are asked for
while the kernel before still runs (`pdl`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpu_worker.pdl import launch_options
from gpu_worker.projection import Projection
from gpu_worker.shared_memory import KEPT, shared_memory

SKINNY = 32
"""Up to so many rows of x this is faster than cuBLAS, or all but as fast. (H200; docs/performance.md.)"""

SKINNY_IF_NARROW, NARROW = 128, 4096
"""Up to so many rows if the matrix has at most so many columns of output: cuBLAS does not cut along K."""

COLUMN_BLOCK = 64
PROGRAMS = 128
"""So many at least are wanted: about as many as there are multiprocessors."""

SMALLEST_BITE = 64
MOST_PARTS = 16

EARLY_BYTES = 512
"""What is asked for early of each row of W; a multiple of 16."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is shared out among programs."""

    parts: int
    bite: int  # columns of W that a program loads at a time
    stages: int
    early: int  # bytes


def cut_for(columns: int, inner: int) -> Cut | None:
    """Return how W [columns, inner] is cut, None if it can't be.

    One wave of programs takes large bites, more of them share the multiprocessors' memory.
    """
    if inner % SMALLEST_BITE:
        return None
    across = -(-columns // COLUMN_BLOCK)
    bites = inner // SMALLEST_BITE
    possible = [parts for parts in range(1, min(bites, MOST_PARTS) + 1) if bites % parts == 0]
    parts = next((parts for parts in possible if across * parts >= PROGRAMS), possible[-1])
    each = inner // parts
    bite, stages = (256, 3) if across * parts <= PROGRAMS else (128, 3)
    while each % bite:
        bite, stages = bite // 2, 4
    return Cut(parts, bite, stages, min(EARLY_BYTES, 2 * each))


def fitted(cut: Cut, rows: int, shared_memory: int) -> Cut:
    """Return a cut whose stages, for so many rows of x, fit into so many bytes: smaller bites before fewer stages."""
    bite, stages = cut.bite, cut.stages
    while bite > SMALLEST_BITE and 2 * (COLUMN_BLOCK + rows) * bite * stages > shared_memory - KEPT:
        bite //= 2
    while stages > 1 and 2 * (COLUMN_BLOCK + rows) * bite * stages > shared_memory - KEPT:
        stages -= 1
    return Cut(cut.parts, bite, stages, cut.early)


@triton.jit
def _fetch_early(place, size):
    """Have `size` bytes from each `place` on brought into the L2 cache, without waiting."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r", [place.to(tl.int64), size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _skinny(
    x, weight, bias, out, rows, out_stride, columns, inner, slice_,
    row_block: tl.constexpr, column_block: tl.constexpr, inner_block: tl.constexpr, biased: tl.constexpr,
    early: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * column_block + tl.arange(0, column_block)
    part = tl.program_id(1)
    m = tl.arange(0, row_block)
    k = part * slice_ + tl.arange(0, inner_block)
    real, here = m < rows, n < columns
    from_weight = weight + n[:, None].to(tl.int64) * inner + k[None, :]
    from_x = x + m[None, :] * inner + k[:, None]
    if pdl:
        gdc_launch_dependents()
        row_starts = weight + tl.minimum(n, columns - 1).to(tl.int64) * inner + part * slice_
        _fetch_early(row_starts, tl.full([column_block], early, tl.int32))
        gdc_wait()
    total = tl.zeros([column_block, row_block], tl.float32)
    for at in range(0, slice_, inner_block):
        w = tl.load(from_weight + at, mask=here[:, None], other=0.0)
        some = tl.load(from_x + at, mask=real[None, :], other=0.0)
        total = tl.dot(w, some, total)
    if biased:
        total += tl.where(part == 0, tl.load(bias + n, mask=here, other=0.0).to(tl.float32), 0.0)[:, None]
    to = out + part * out_stride + m[None, :] * columns + n[:, None]
    tl.store(to, total, mask=real[None, :] & here[:, None])


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None, cut: Cut) -> Tensor:
    """Return x·Wᵀ + b as partial sums: float32 [parts, T, N].

    `x` [T, K], `weight` [N, K] and `bias` [N] are contiguous and of one 16-bit type; `cut` is `cut_for(N, K)`.
    """
    (rows, inner), columns = x.shape, len(weight)
    out = torch.empty((cut.parts, rows, columns), dtype=torch.float32, device=x.device)
    _skinny[(triton.cdiv(columns, COLUMN_BLOCK), cut.parts)](
        x, weight, weight if bias is None else bias, out, rows, out.stride(0), columns, inner, inner // cut.parts,
        row_block=max(16, triton.next_power_of_2(rows)), column_block=COLUMN_BLOCK, inner_block=cut.bite,
        biased=bias is not None, early=cut.early, num_warps=4, num_stages=cut.stages, **launch_options(x.device),
    )  # fmt: skip
    return out


def projection(weight: Tensor, bias: Tensor | None) -> Projection:
    """Return x ↦ x·Wᵀ + b: partial sums for a few rows, if that is faster, and [T, N] for more."""
    columns, inner = weight.shape
    cut = cut_for(columns, inner) if weight.dtype in (torch.bfloat16, torch.float16) else None
    if cut is None:
        return lambda x: F.linear(x, weight, bias)
    most = SKINNY_IF_NARROW if columns <= NARROW else SKINNY
    room = shared_memory(weight.device)
    narrow_cut, wide_cut = (fitted(cut, rows, room) for rows in (SKINNY, SKINNY_IF_NARROW))

    def multiply(x: Tensor) -> Tensor:
        if len(x) > most:
            return F.linear(x, weight, bias)
        return skinny_linear(x, weight, bias, narrow_cut if len(x) <= SKINNY else wide_cut)

    return multiply
