# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Attention of several tokens a row over the paged cache as a Triton kernel: prompts, whole or in chunks.

    a row's tokens   │ tile │ tile │ tile │til      a program: one tile's queries of one group of heads,
    its past    ─────┴──────┴──────┴──────┴───      over all that the last of them sees

Which tile is whose is read on the device, and a tile of no tokens is none: so one grid, and one CUDA graph, serves all
steps of so many tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpu_worker.paged_decode import BYTES, LEAST_DIMS, LOG2_E
from gpu_worker.pdl import launch_options
from gpu_worker.shared_memory import stages_that_fit

QUERIES_AT_A_TIME = 64
"""Rows of a program's tile: tokens times heads of a group."""

KEYS_AT_A_TIME = 64
STAGES = 2

PRECISE_QUERIES, PRECISE_KEYS = 32, 32
"""The same in float32, which has no tensor cores to feed, and takes twice the room."""


@triton.jit
def _tile(
    query, keys, values, tables, tile_token, tile_count, tile_slot, tile_position, out, scale, window, table_stride,
    tokens: tl.constexpr, group: tl.constexpr, padded_group: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, kv_heads: tl.constexpr, block_size: tl.constexpr, step: tl.constexpr,
    precision: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    if pdl:
        gdc_launch_dependents()
        gdc_wait()
    count = tl.load(tile_count + tile)
    if count > 0:
        position = tl.load(tile_position + tile)
        rows = tl.arange(0, tokens * padded_group)
        token, in_group = rows // padded_group, rows % padded_group
        dims = tl.arange(0, padded_dim)
        here = ((token < count) & (in_group < group))[:, None] & (dims < head_dim)[None, :]
        own = (tl.load(tile_token + tile) + token).to(tl.int64) * kv_heads * group + head * group + in_group
        q = tl.load(query + own[:, None] * head_dim + dims[None, :], mask=here, other=0.0)
        table = tables + tl.load(tile_slot + tile).to(tl.int64) * table_stride
        most = tl.full([tokens * padded_group], -1e30, tl.float32)
        total = tl.zeros([tokens * padded_group], tl.float32)
        mixed = tl.zeros([tokens * padded_group, padded_dim], tl.float32)
        end = position + count
        begin = tl.where(window > 0, tl.maximum(position - window + 1, 0) // step * step, 0)
        # What lies before the tile is seen by all of its tokens, unless there is a window: no mask is needed there.
        plain = tl.where(window > 0, begin, (position + 1) // step * step)
        for at in range(begin, plain, step):
            most, total, mixed = _look(
                q, keys, values, table, at, end, position + token, window, scale, dims, head, most, total, mixed,
                head_dim, padded_dim, kv_heads, block_size, step, False, precision,
            )  # fmt: skip
        for at in range(plain, end, step):
            most, total, mixed = _look(
                q, keys, values, table, at, end, position + token, window, scale, dims, head, most, total, mixed,
                head_dim, padded_dim, kv_heads, block_size, step, True, precision,
            )  # fmt: skip
        mixed = mixed / total[:, None]
        tl.store(out + own[:, None] * head_dim + dims[None, :], mixed.to(out.dtype.element_ty), mask=here)


@triton.jit
def _look(
    q, keys, values, table, at, end, own, window, scale, dims, head, most, total, mixed,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, kv_heads: tl.constexpr, block_size: tl.constexpr,
    step: tl.constexpr, masked: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Take in the next places of a row's past."""
    place = at + tl.arange(0, step)
    real = place < end
    if masked:
        block = tl.load(table + place // block_size, mask=real, other=0).to(tl.int64)
    else:
        block = tl.load(table + place // block_size).to(tl.int64)
    base = ((block * block_size + place % block_size) * kv_heads + head) * head_dim
    to_keys = keys + base[None, :] + dims[:, None]
    to_values = values + base[:, None] + dims[None, :]
    # What lies beyond the row's end may be NaN: it is never loaded.
    if masked:
        k = tl.load(to_keys, mask=real[None, :] & (dims < head_dim)[:, None], other=0.0)
        v = tl.load(to_values, mask=real[:, None] & (dims < head_dim)[None, :], other=0.0)
    elif head_dim == padded_dim:
        k, v = tl.load(to_keys), tl.load(to_values)
    else:
        k = tl.load(to_keys, mask=(dims < head_dim)[:, None], other=0.0)
        v = tl.load(to_values, mask=(dims < head_dim)[None, :], other=0.0)
    score = tl.dot(q, k, input_precision=precision) * scale
    if masked:
        seen = place[None, :] <= own[:, None]
        seen = seen & ((window == 0) | (place[None, :] > own[:, None] - window))
        score = tl.where(seen, score, -1e30)
    higher = tl.maximum(most, tl.max(score, 1))
    shrink = tl.exp2(most - higher)
    weight = tl.exp2(score - higher[:, None])
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=precision)
    return higher, total * shrink + tl.sum(weight, 1), mixed


@dataclass(frozen=True, slots=True)
class Tiles:
    """Which tokens of a step are attended to together, int32 [N] each; a tile of 0 tokens is none."""

    token: Tensor  # its first among the step's tokens
    count: Tensor
    slot: Tensor
    position: Tensor  # of its first token


def tile_tokens(num_heads: int, kv_heads: int, dtype: torch.dtype) -> int:
    """Return how many tokens of a row are one tile."""
    rows = PRECISE_QUERIES if dtype == torch.float32 else QUERIES_AT_A_TIME
    return int(max(1, rows // triton.next_power_of_2(num_heads // kv_heads)))


class PagedPrefill:
    """The kernel, for one model. It has no memory of its own."""

    def __init__(
        self, num_heads: int, kv_heads: int, head_dim: int, block_size: int, scale: float | None, device: torch.device
    ) -> None:
        """`scale` is what q·k is multiplied by; None is 1/√head_dim."""
        self._heads, self._kv_heads, self._head_dim, self._block_size = num_heads, kv_heads, head_dim, block_size
        self._scale = (head_dim**-0.5 if scale is None else scale) * LOG2_E
        self._options = launch_options(device)
        self._padded_dim = max(LEAST_DIMS, triton.next_power_of_2(head_dim))
        each, once = 2 * KEYS_AT_A_TIME * self._padded_dim * BYTES, QUERIES_AT_A_TIME * self._padded_dim * BYTES
        self._stages = stages_that_fit(device, STAGES, each, once)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, tiles: Tiles, window: int, out: Tensor
    ) -> None:
        """Put the attention of the tiles' tokens into `out`; `q`, `out`: [T, num_heads, head_dim].

        `keys`, `values`: a layer's cache, [blocks, block_size, kv_heads, head_dim]. The token at position p of a slot
        sees positions 0 … p of its block table `tables[slot]` (int32), or the last `window` of these.
        """
        group = self._heads // self._kv_heads
        precise = q.dtype == torch.float32
        tokens = tile_tokens(self._heads, self._kv_heads, q.dtype)
        _tile[(len(tiles.count), self._kv_heads)](
            q, keys, values, tables, tiles.token, tiles.count, tiles.slot, tiles.position, out,
            self._scale, window, tables.stride(0),
            tokens=tokens, group=group, padded_group=triton.next_power_of_2(group), head_dim=self._head_dim,
            padded_dim=self._padded_dim, kv_heads=self._kv_heads,
            block_size=self._block_size, step=PRECISE_KEYS if precise else KEYS_AT_A_TIME,
            precision="ieee" if precise else "tf32",
            num_warps=4, num_stages=1 if precise else self._stages, **self._options,
        )  # fmt: skip
