# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The beginning of a step as one Triton kernel: carry-over, embedding, and where each token's keys and values go."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.paged_columns import CARRIED

ENTRIES_AT_A_TIME = 256


@triton.jit
def _begin(
    tokens, positions, slots, last_token, tables, embedding, embedded, where, table_stride, multiplier,
    hidden: tl.constexpr, width: tl.constexpr, block_size: tl.constexpr, carried: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    token = tl.load(tokens + row).to(tl.int64)
    # The step before has just sampled it, or is about to: the stream's order makes it right.
    token = tl.where(token == carried, tl.load(last_token + slot), token)
    position = tl.load(positions + row)
    block = tl.load(tables + slot * table_stride + position // block_size).to(tl.int64)
    tl.store(where + row, block * block_size + position % block_size)
    at = tl.arange(0, width)
    x = tl.load(embedding + token * hidden + at, mask=at < hidden, other=0.0)
    x = (x.to(tl.float32) * multiplier).to(x.dtype)
    tl.store(embedded + row.to(tl.int64) * hidden + at, x, mask=at < hidden)


def begin(
    tokens: Tensor, positions: Tensor, slots: Tensor, last_token: Tensor, tables: Tensor, embedding: Tensor,
    multiplier: float, block_size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (embedded [T, hidden], where int64 [T]: block · block_size + offset) of a step's tokens.

    `tokens`, `positions`, `slots`: int32 [T], a token may be `CARRIED`; `last_token`: int64 [slots]; `tables`: int32
    [slots, blocks]; `embedding`: [vocabulary, hidden].
    """
    hidden = embedding.shape[1]
    embedded = torch.empty((len(tokens), hidden), dtype=embedding.dtype, device=embedding.device)
    where = torch.empty(len(tokens), dtype=torch.int64, device=embedding.device)
    _begin[(len(tokens),)](
        tokens, positions, slots, last_token, tables, embedding, embedded, where, tables.stride(0), multiplier,
        hidden=hidden, width=triton.next_power_of_2(hidden), block_size=block_size, carried=CARRIED,
        num_warps=8 if hidden > 2048 else 4,
    )  # fmt: skip
    return embedded, where


@triton.jit(do_not_specialize=["entries"])
def _write(tables, slot, index, block, entries, table_stride, at_a_time: tl.constexpr):
    at = tl.program_id(0) * at_a_time + tl.arange(0, at_a_time)
    real = at < entries
    to = tl.load(slot + at, mask=real, other=0).to(tl.int64) * table_stride + tl.load(index + at, mask=real, other=0)
    tl.store(tables + to, tl.load(block + at, mask=real, other=0), mask=real)


def write_tables(tables: Tensor, slot: Tensor, index: Tensor, block: Tensor) -> None:
    """Do tables[slot, index] = block, which are int32 [n]."""
    grid = (triton.cdiv(len(slot), ENTRIES_AT_A_TIME),)
    _write[grid](tables, slot, index, block, len(slot), tables.stride(0), at_a_time=ENTRIES_AT_A_TIME, num_warps=4)
