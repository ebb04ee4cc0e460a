# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Decode attention over the paged cache as two Triton kernels: many programs per row, each over a part of its past.

    row, kv head │ part 0 │ part 1 │ … │      split: each part's own softmax, and how much weight it has
                 └────────┴────────┴───► joined: the parts, weighed

The grid is fixed; what each program works on is computed from the lengths on the device. So one CUDA graph serves any
lengths, and the host never has to know them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = math.log2(math.e)

KEYS_AT_A_TIME = 64
"""Cache places that a program loads in one go."""

LEAST_QUERIES = 16
"""Tensor cores multiply no fewer rows than that; the heads of a group are padded up to it."""

PROGRAMS_A_MULTIPROCESSOR = 2
"""So many programs at least are wanted for each, or memory is not kept busy."""

MOST_PARTS = 32


@triton.jit
def _split(
    query, keys, values, tables, row_slot, row_length, part_out, part_weight,
    scale, window, table_stride,
    parts: tl.constexpr, group: tl.constexpr, padded_group: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, kv_heads: tl.constexpr, block_size: tl.constexpr, step: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(row_length + row)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    share = tl.cdiv(tl.cdiv(length - begin, parts), step) * step
    first = begin + part * share
    end = tl.minimum(first + share, length)
    heads = tl.arange(0, padded_group)
    dims = tl.arange(0, padded_dim)
    in_group, in_head = heads < group, dims < head_dim
    own = row.to(tl.int64) * kv_heads * group + head * group + heads  # of all query heads of all rows
    table = tables + tl.load(row_slot + row).to(tl.int64) * table_stride
    if first < end:
        here = in_group[:, None] & in_head[None, :]
        q = tl.load(query + own[:, None] * head_dim + dims[None, :], mask=here, other=0.0)
        most = tl.full([padded_group], -1e30, tl.float32)
        total = tl.zeros([padded_group], tl.float32)
        mixed = tl.zeros([padded_group, padded_dim], tl.float32)
        for at in range(first, end, step):
            place = at + tl.arange(0, step)
            real = place < end
            block = tl.load(table + place // block_size, mask=real, other=0).to(tl.int64)
            base = ((block * block_size + place % block_size) * kv_heads + head) * head_dim
            # What lies beyond the row's end may be NaN: it is never loaded.
            k = tl.load(keys + base[None, :] + dims[:, None], mask=real[None, :] & in_head[:, None], other=0.0)
            score = tl.dot(q, k, input_precision=precision) * scale
            score = tl.where(real[None, :], score, -1e30)
            higher = tl.maximum(most, tl.max(score, 1))
            shrink = tl.exp2(most - higher)
            weight = tl.exp2(score - higher[:, None])
            v = tl.load(values + base[:, None] + dims[None, :], mask=real[:, None] & in_head[None, :], other=0.0)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=precision)
            total = total * shrink + tl.sum(weight, 1)
            most = higher
        to = own[:, None] * parts + part
        tl.store(part_out + to * head_dim + dims[None, :], mixed / total[:, None], mask=here)
        tl.store(part_weight + own * parts + part, most + tl.log2(total), mask=in_group)


@triton.jit
def _join(
    part_out, part_weight, row_length, out, window,
    parts: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(row_length + row)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    share = tl.cdiv(tl.cdiv(length - begin, parts), step) * step
    part, dims = tl.arange(0, parts), tl.arange(0, padded_dim)
    there, in_head = begin + part * share < length, dims < head_dim
    own = row.to(tl.int64) * heads + head
    log_weight = tl.load(part_weight + own * parts + part, mask=there, other=-1e30)
    weight = tl.exp2(log_weight - tl.max(log_weight, 0))
    weight = weight / tl.sum(weight, 0)
    each = (own * parts + part)[:, None] * head_dim + dims[None, :]
    mixed = tl.load(part_out + each, mask=there[:, None] & in_head[None, :], other=0.0)
    tl.store(out + own * head_dim + dims, tl.sum(mixed * weight[:, None], 0).to(out.dtype.element_ty), mask=in_head)


def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":  # where Triton interprets: there is nobody to keep busy, but there are parts to join
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class PagedDecode:
    """The kernels, with the memory that goes between them, for at most `rows` rows."""

    def __init__(
        self, rows: int, num_heads: int, kv_heads: int, head_dim: int, block_size: int, scale: float | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        """`scale` is what q·k is multiplied by; None is 1/√head_dim."""
        self._heads, self._kv_heads, self._head_dim, self._block_size = num_heads, kv_heads, head_dim, block_size
        self._scale = (head_dim**-0.5 if scale is None else scale) * LOG2_E
        self._programs = PROGRAMS_A_MULTIPROCESSOR * _multiprocessors(device)
        most = max(each * self.parts_for(each) for each in range(1, rows + 1))
        self._out = torch.empty(most * num_heads * head_dim, dtype=torch.float32, device=device)
        self._weight = torch.empty(most * num_heads, dtype=torch.float32, device=device)

    def parts_for(self, rows: int) -> int:
        """Return into how many parts the past of each of so many rows is split: a power of two."""
        wanted = -(-self._programs // (rows * self._kv_heads))
        return min(MOST_PARTS, 1 << max(0, (wanted - 1).bit_length()))

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, window: int
    ) -> Tensor:
        """Return the attention of one token a row over its past, itself included: [R, num_heads, head_dim], as `q`.

        `keys`, `values`: a layer's cache, [blocks, block_size, kv_heads, head_dim]. Row r sees the first `lengths[r]`
        (int32 [R], at least 1) positions of the block table `tables[slots[r]]` (int32), or the last `window` of these.
        """
        rows = len(q)
        parts = self.parts_for(rows)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        shape = {"parts": parts, "head_dim": self._head_dim, "padded_dim": triton.next_power_of_2(self._head_dim)}
        group = self._heads // self._kv_heads
        _split[(rows, self._kv_heads, parts)](
            q.contiguous(), keys, values, tables, slots, lengths, self._out, self._weight,
            self._scale, window, tables.stride(0),
            group=group, padded_group=max(LEAST_QUERIES, triton.next_power_of_2(group)), kv_heads=self._kv_heads,
            block_size=self._block_size, step=KEYS_AT_A_TIME,
            precision="ieee" if q.dtype == torch.float32 else "tf32", **shape,
            num_warps=2 if q.dtype != torch.float32 else 4, num_stages=3 if q.dtype != torch.float32 else 1,
        )  # fmt: skip
        _join[(rows, self._heads)](
            self._out, self._weight, lengths, out, window, heads=self._heads, step=KEYS_AT_A_TIME, **shape, num_warps=4
        )
        return out
