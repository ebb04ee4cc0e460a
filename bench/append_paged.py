# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""One Triton kernel that writes one token a row into a paged cache: what flash-attn does beside attending."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _append(
    k, v, keys, values, tables, row_length, new_length, table_stride,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr, block_size: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(row_length + row)
    if head == 0:
        tl.store(new_length + row, length + 1)
    if length >= 0:
        dims = tl.arange(0, padded_dim)
        in_head = dims < head_dim
        block = tl.load(tables + row.to(tl.int64) * table_stride + length // block_size).to(tl.int64)
        source = (row.to(tl.int64) * kv_heads + head) * head_dim + dims
        target = ((block * block_size + length % block_size) * kv_heads + head) * head_dim + dims
        tl.store(keys + target, tl.load(k + source, mask=in_head), mask=in_head)
        tl.store(values + target, tl.load(v + source, mask=in_head), mask=in_head)


def append(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, new_lengths: Tensor
) -> None:
    """Write `k` and `v` [R, kv_heads, head_dim] behind what each row has, and how much that makes into `new_lengths`.

    `keys`, `values`: [blocks, block_size, kv_heads, head_dim]. `tables`: int32 [R, most blocks]. `lengths`,
    `new_lengths`: int32 [R]; a row of length -1 is padding, and ends as one of 0.
    """
    rows, kv_heads, head_dim = k.shape
    _append[(rows, kv_heads)](
        k.contiguous(), v.contiguous(), keys, values, tables, lengths, new_lengths, tables.stride(0),
        kv_heads=kv_heads, head_dim=head_dim, padded_dim=triton.next_power_of_2(head_dim), block_size=keys.shape[1],
    )  # fmt: skip
