# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Decode attention over the paged cache as a Triton kernel: many programs per row, each over a part of its past.

    row, kv head │ part 0 │ part 1 │ … │      each part's own softmax, and how much weight it has
                 └────────┴────────┴───► joined, weighed, by whichever program of the row and head is the last to end

The grid is fixed; what each program works on is computed from the lengths on the device. So one CUDA graph serves any
lengths, and the host never has to know them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpu_worker.pdl import launch_options
from gpu_worker.shared_memory import stages_that_fit

LOG2_E = math.log2(math.e)

KEYS_AT_A_TIME = 64
"""Cache places that a program loads in one go."""

LEAST_QUERIES = 16
"""Tensor cores multiply no fewer rows than that; the heads of a group are padded up to it."""

PROGRAMS_A_MULTIPROCESSOR = 2
"""So many programs at least are wanted for each, or memory is not kept busy."""

LEAST_DIMS = 16
"""Nor do they sum over fewer."""

STAGES = 3
"""Loads of keys and values under way at once, where shared memory has room for them."""

BYTES = 2
"""Of a number in 16 bits; float32 has one stage."""

MOST_PARTS = 32


@triton.jit
def _attend(
    query, query_at, keys, values, tables, row_slot, row_length, part_out, part_weight, arrived, out,
    scale, window, table_stride,
    parts: tl.constexpr, group: tl.constexpr, padded_group: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, kv_heads: tl.constexpr, block_size: tl.constexpr, step: tl.constexpr,
    scattered: tl.constexpr, precision: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if pdl:
        gdc_launch_dependents()
        gdc_wait()
    length = tl.load(row_length + row)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    share = tl.cdiv(tl.cdiv(length - begin, parts), step) * step
    first = begin + part * share
    end = tl.minimum(first + share, length)
    heads = tl.arange(0, padded_group)
    dims = tl.arange(0, padded_dim)
    in_group, in_head = heads < group, dims < head_dim
    here = in_group[:, None] & in_head[None, :]
    token = row
    if scattered:
        token = tl.load(query_at + row)
    own = token.to(tl.int64) * kv_heads * group + head * group + heads  # of all query heads of all tokens
    mine = row.to(tl.int64) * kv_heads * group + head * group + heads  # of those of all rows
    table = tables + tl.load(row_slot + row).to(tl.int64) * table_stride
    if not scattered:  # noqa: SIM102 - this is decided when the kernel is compiled
        if (part == 0) & (length <= 0):  # no row at all
            nothing = tl.zeros([padded_group, padded_dim], tl.float32)
            tl.store(out + own[:, None] * head_dim + dims[None, :], nothing.to(out.dtype.element_ty), mask=here)
    if first < end:
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
        mixed = mixed / total[:, None]
        if parts == 1:
            tl.store(out + own[:, None] * head_dim + dims[None, :], mixed.to(out.dtype.element_ty), mask=here)
        else:
            to = mine[:, None] * parts + part
            tl.store(part_out + to * head_dim + dims[None, :], mixed, mask=here)
            tl.store(part_weight + mine * parts + part, most + tl.log2(total), mask=in_group)
    if parts > 1:
        tl.debug_barrier()  # all of the program's stores are before its arrival
        before = tl.atomic_add(arrived + row * kv_heads + head, 1, sem="acq_rel")
        if before == parts - 1:
            tl.store(arrived + row * kv_heads + head, 0)
            _join(part_out, part_weight, out, own, mine, in_group, dims, here, length - begin, share, parts, head_dim)


@triton.jit
def _join(
    part_out, part_weight, out, own, mine, in_group, dims, here, length, share,
    parts: tl.constexpr, head_dim: tl.constexpr,
):  # fmt: skip
    """Weigh the parts of a row's heads, all of which are there."""
    most = tl.full(in_group.shape, -1e30, tl.float32)
    total = tl.zeros(in_group.shape, tl.float32)
    mixed = tl.zeros(here.shape, tl.float32)
    for part in range(0, tl.minimum(parts, tl.cdiv(length, tl.maximum(share, 1)))):
        log_weight = tl.load(part_weight + mine * parts + part, mask=in_group, other=-1e30, cache_modifier=".cg")
        to = (mine[:, None] * parts + part) * head_dim + dims[None, :]
        some = tl.load(part_out + to, mask=here, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(most, log_weight)
        shrink, weight = tl.exp2(most - higher), tl.exp2(log_weight - higher)
        mixed = mixed * shrink[:, None] + some * weight[:, None]
        total = total * shrink + weight
        most = higher
    if length > 0:
        mixed = mixed / total[:, None]
        tl.store(out + own[:, None] * head_dim + dims[None, :], mixed.to(out.dtype.element_ty), mask=here)


def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":  # where Triton interprets: there is nobody to keep busy, but there are parts to join
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class PagedDecode:
    """The kernel, with the memory that goes between its programs, for at most `rows` rows."""

    def __init__(
        self, rows: int, num_heads: int, kv_heads: int, head_dim: int, block_size: int, scale: float | None,
        device: torch.device, least_parts: int = 1,
    ) -> None:  # fmt: skip
        """`scale` is what q·k is multiplied by; None is 1/√head_dim. `least_parts` are those of `attend_some`."""
        self._heads, self._kv_heads, self._head_dim, self._block_size = num_heads, kv_heads, head_dim, block_size
        self._scale = (head_dim**-0.5 if scale is None else scale) * LOG2_E
        self._programs, self._least_parts = PROGRAMS_A_MULTIPROCESSOR * _multiprocessors(device), least_parts
        most = max(each * max(self.parts_for(each), least_parts) for each in range(1, rows + 1))
        self._out = torch.empty(most * num_heads * head_dim, dtype=torch.float32, device=device)
        self._weight = torch.empty(most * num_heads, dtype=torch.float32, device=device)
        self._arrived = torch.zeros(rows * kv_heads, dtype=torch.int32, device=device)
        self._options = launch_options(device)
        self._padded_dim = max(LEAST_DIMS, triton.next_power_of_2(head_dim))
        self._stages = stages_that_fit(device, STAGES, 2 * KEYS_AT_A_TIME * self._padded_dim * BYTES)

    def parts_for(self, rows: int) -> int:
        """Return into how many parts the past of each of so many rows is split: a power of two."""
        wanted = -(-self._programs // (rows * self._kv_heads))
        return min(MOST_PARTS, 1 << max(0, (wanted - 1).bit_length()))

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, window: int
    ) -> Tensor:
        """Return the attention of one token a row over its past, itself included: [R, num_heads, head_dim], as `q`.

        `keys`, `values`: a layer's cache, [blocks, block_size, kv_heads, head_dim]. Row r sees the first `lengths[r]`
        (int32 [R]) positions of the block table `tables[slots[r]]` (int32), or the last `window` of these. A row of
        length 0 or less is none, and zeros come out.
        """
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self._launch(q.contiguous(), keys, values, tables, slots, lengths, window, None, out, self.parts_for(len(q)))
        return out

    def attend_some(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, window: int,
        at: Tensor, out: Tensor,
    ) -> None:  # fmt: skip
        """As `attend`, but row r is the token `at[r]` (int32 [R]) of `q` and `out`; other tokens are left alone."""
        parts = max(self._least_parts, self.parts_for(len(slots)))
        self._launch(q, keys, values, tables, slots, lengths, window, at, out, parts)

    def _launch(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, window: int,
        at: Tensor | None, out: Tensor, parts: int,
    ) -> None:  # fmt: skip
        group, precise = self._heads // self._kv_heads, q.dtype == torch.float32
        _attend[(len(slots), self._kv_heads, parts)](
            q, slots if at is None else at, keys, values, tables, slots, lengths,
            self._out, self._weight, self._arrived, out, self._scale, window, tables.stride(0),
            parts=parts, group=group, padded_group=max(LEAST_QUERIES, triton.next_power_of_2(group)),
            head_dim=self._head_dim, padded_dim=self._padded_dim, kv_heads=self._kv_heads,
            block_size=self._block_size, step=KEYS_AT_A_TIME, scattered=at is not None,
            precision="ieee" if precise else "tf32",
            num_warps=4 if precise else 2, num_stages=1 if precise else self._stages, **self._options,
        )  # fmt: skip
