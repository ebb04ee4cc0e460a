"""Attention over the paged cache in plain torch.

What depends on lengths and block tables is worked out once a step, in `prepare`; a layer then only gathers and
multiplies. Grouped queries need no repeated keys: the group of a decode row becomes the query axis, that of a prefill
row a head axis of stride 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.kv_cache import KVCache

# Decode rows up to this long share a batch whatever their lengths: padding them costs less than a second call would.
_SHORT = 128


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each and of about the same length, n of them, padded to `length`."""

    query: Tensor | None  # int64 [n]: their places among the step's tokens; None: they are all of these, in order
    where: Tensor  # int64 [n · length]: cache places of positions 0, 1, …; those past a row's end are its last again
    length: int
    mask: Tensor | None  # [n, 1, 1, length]: 0 or -inf, None when all rows are equally long


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Several tokens of one request, at `query` … `query + count - 1` among the step's tokens."""

    query: int
    count: int
    where: Tensor  # int64 [length]
    mask: Tensor | None  # [count, length]: 0 or -inf, None for a row that begins at position 0 (plain causal)


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """All that the layers of one step share."""

    where: Tensor  # int64 [T]: where each token's K and V are to be written
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillRow, ...]


class TorchAttention:
    """Attention for any device that torch knows; meant for the CPU and as the reference for kernels."""

    def __init__(self, block_size: int, dtype: torch.dtype) -> None:
        self.block_size, self.dtype = block_size, dtype

    def prepare(self, tables: Tensor, position: NDArray[np.int32], count: NDArray[np.int32]) -> AttentionStep:
        """Work out a step of R rows: row r has `count[r]` ≥ 1 tokens, the first at `position[r]`.

        `tables`: int32 [R, W] on the device, block ids, W · block_size covering every row. A padded row is a row whose
        table holds the padding block. Shapes are decided by the host arrays, nothing is read back from the device.
        """
        device = tables.device
        position, count = position.astype(np.int64), count.astype(np.int64)
        first = np.cumsum(count) - count
        row = np.repeat(np.arange(len(count)), count)
        each = np.arange(len(row)) + np.repeat(position - first, count)
        row_of, position_of = _to(row, device), _to(each, device)
        block = tables[row_of, position_of // self.block_size].long()
        where = block * self.block_size + position_of % self.block_size
        lengths = position + count
        singles, several = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
        return AttentionStep(
            where=where,
            decode=tuple(
                self._decode_group(tables, rows, lengths[rows], first[rows], len(each))
                for rows in _alike(lengths, singles)
            ),
            prefill=tuple(
                self._prefill_row(tables[r], int(first[r]), int(position[r]), int(count[r])) for r in several.tolist()
            ),
        )

    def attend(self, layer: int, q: Tensor, cache: KVCache, step: AttentionStep) -> Tensor:
        """Return softmax(q·kᵀ/√head_dim)·v over each token's own past: [T, num_heads, head_dim], like `q`.

        The step's own K and V must have been written to `cache` before.
        """
        out = torch.empty_like(q)
        for group in step.decode:
            mixed = _attend_decode(q if group.query is None else q.index_select(0, group.query), layer, cache, group)
            if group.query is None:
                return mixed
            out.index_copy_(0, group.query, mixed)
        for row in step.prefill:
            some = slice(row.query, row.query + row.count)
            out[some] = _attend_prefill(q[some], layer, cache, row)
        return out

    def _decode_group(
        self, tables: Tensor, rows: NDArray[np.int64], lengths: NDArray[np.int64], query: NDArray[np.int64], tokens: int
    ) -> DecodeGroup:
        device, longest = tables.device, int(lengths.max())
        every = torch.arange(longest, device=device)
        last = _to(lengths - 1, device)[:, None]
        # A place past the end may hold anything, NaN too, and 0 · NaN is NaN: look at the last real position instead.
        seen = torch.minimum(every, last)
        block = tables[_to(rows, device)].long().gather(1, seen // self.block_size)
        where = (block * self.block_size + seen % self.block_size).flatten()
        mask = None
        if int(lengths.min()) < longest:
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=device)
            mask = mask.masked_fill_(every > last, float("-inf"))[:, None, None]
        whole = len(rows) == tokens and bool((query == np.arange(tokens)).all())
        return DecodeGroup(None if whole else _to(query, device), where, longest, mask)

    def _prefill_row(self, table: Tensor, query: int, position: int, count: int) -> PrefillRow:
        every = torch.arange(position + count, device=table.device)
        where = table.long()[every // self.block_size] * self.block_size + every % self.block_size
        mask = None
        if position:
            mask = torch.zeros((count, position + count), dtype=self.dtype, device=table.device)
            mask = mask.masked_fill_(every > every[position:, None], float("-inf"))
        return PrefillRow(query, count, where, mask)


def _attend_decode(q: Tensor, layer: int, cache: KVCache, group: DecodeGroup) -> Tensor:
    n, heads, head_dim = q.shape
    k, v = (x.view(n, group.length, -1, head_dim).transpose(1, 2) for x in cache.gather(layer, group.where))
    grouped = q.view(n, k.shape[1], -1, head_dim)  # [n, kv heads, heads of one group, head_dim]
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask).reshape(n, heads, head_dim)


def _attend_prefill(q: Tensor, layer: int, cache: KVCache, row: PrefillRow) -> Tensor:
    count, heads, head_dim = q.shape
    k, v = (x.transpose(0, 1)[:, None] for x in cache.gather(layer, row.where))  # [kv heads, 1, length, head_dim]
    kv_heads = k.shape[0]
    # [kv heads, heads of one group, count, head_dim]
    grouped = q.view(count, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    k, v = (x.expand(-1, heads // kv_heads, -1, -1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(grouped, k, v, attn_mask=row.mask, is_causal=row.mask is None)
    return mixed.flatten(0, 1).transpose(0, 1)


def _alike(lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split rows so that none is padded beyond twice its length, unless it is short."""
    if not len(rows):
        return []
    classes = np.ceil(np.log2(np.maximum(lengths[rows], _SHORT))).astype(np.int64)
    return [rows[classes == c] for c in np.unique(classes).tolist()]


def _to(values: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
