"""Attention over the paged cache in plain torch.

What depends on lengths and block tables is worked out once a step, in `prepare`; a layer then only gathers and
multiplies. Grouped queries need no repeated keys: the group of a decode row becomes the query axis, that of a prefill
row a head axis of stride 0.

With a sliding window of w, position p sees p-w+1 … p, and nothing older is gathered:

keys of a decode row            · · · · · · · · ■ ■ ■ ■        w = 4, the row's token is the last
keys of a prefill row of three  · · · · · · ■ ■ ■ ■ ■ ■        the mask gives each token its own four of these
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.kv_cache import KVCache, KVShape

# Decode rows up to this long share a batch whatever their lengths: padding them costs less than a second call would.
_SHORT = 128


class AttentionShape(KVShape, Protocol):
    """What attention must know of a model; a `ModelConfig` says it for the lean decoder."""

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """How many positions a token sees in each layer, its own included, 0 for all; empty: all, in every layer."""

    @property
    def attention_scale(self) -> float | None:
        """What q·k is multiplied by; None is 1/√head_dim."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each and of about the same length, n of them, padded to `length`."""

    query: Tensor | None  # int64 [n]: their places among the step's tokens; None: they are all of these, in order
    where: Tensor  # int64 [n · length]: cache places of what a row sees; those past its end are its last again
    length: int
    mask: Tensor | None  # [n, 1, 1, length]: 0 or -inf, None when all rows are equally long


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Several tokens of one request, at `query` … `query + count - 1` among the step's tokens."""

    query: int
    count: int
    where: Tensor  # int64 [length]
    mask: Tensor | None  # [count, length]: 0 or -inf, None where it is plain causal from the first place on


@dataclass(frozen=True, slots=True)
class Sight:
    """What the rows of one step see in all layers of the same window."""

    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillRow, ...]


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """All that the layers of one step share."""

    where: Tensor  # int64 [T]: where each token's K and V are to be written
    sights: tuple[Sight, ...]  # one for each of the model's windows


class StepPlaces(Protocol):
    """What every kind of step says."""

    @property
    def where(self) -> Tensor:
        """Where each token's K and V are to be written, int64 [T]: block · block_size + offset."""


class Attention(Protocol):
    """What a decoder asks: `TorchAttention`, or `PagedAttention` on a GPU."""

    def attend(self, layer: int, q: Tensor, cache: KVCache, step: Any) -> Tensor:
        """As `TorchAttention.attend`; `step` is one of its own making."""


class TorchAttention:
    """Attention for any device that torch knows; meant for the CPU and as the reference for kernels."""

    def __init__(self, shape: AttentionShape, block_size: int, dtype: torch.dtype) -> None:
        self.block_size, self.dtype, self.scale = block_size, dtype, shape.attention_scale
        layer_windows = shape.layer_windows or (0,) * shape.num_layers
        self.windows = tuple(sorted(set(layer_windows)))  # 0 is none at all, and comes first
        self._sight_of_layer = tuple(self.windows.index(window) for window in layer_windows)

    def prepare(self, tables: Tensor, position: NDArray[np.int32], count: NDArray[np.int32]) -> AttentionStep:
        """Work out a step of R rows: row r has `count[r]` ≥ 1 tokens, the first at `position[r]`.

        `tables`: int32 [R, W] on the device, block ids, W · block_size covering every row. A padded row is a row whose
        table holds the padding block. Shapes are decided by the host arrays, nothing is read back from the device.
        """
        device = tables.device
        begin, tokens = position.astype(np.int64), count.astype(np.int64)
        first = np.cumsum(tokens) - tokens
        row = np.repeat(np.arange(len(tokens)), tokens)
        each = np.arange(len(row)) + np.repeat(begin - first, tokens)
        row_of, position_of = _to(row, device), _to(each, device)
        block = tables[row_of, position_of // self.block_size].long()
        where = block * self.block_size + position_of % self.block_size
        longest = int((begin + tokens).max(initial=0))
        reaches = [window if window < longest else 0 for window in self.windows]  # 0: nothing has outgrown the window
        sights = {reach: self._sight(tables, begin, tokens, first, reach) for reach in dict.fromkeys(reaches)}
        return AttentionStep(where, tuple(sights[reach] for reach in reaches))

    def attend(self, layer: int, q: Tensor, cache: KVCache, step: AttentionStep) -> Tensor:
        """Return softmax(q·kᵀ·scale)·v over what each token sees of its own past: [T, num_heads, head_dim], like `q`.

        The scale is 1/√head_dim unless the model has its own. The step's own K and V must have been written to `cache`
        before.
        """
        sight = step.sights[self._sight_of_layer[layer]]
        out = torch.empty_like(q)
        for group in sight.decode:
            some = q if group.query is None else q.index_select(0, group.query)
            mixed = _attend_decode(some, layer, cache, group, self.scale)
            if group.query is None:
                return mixed
            out.index_copy_(0, group.query, mixed)
        for row in sight.prefill:
            own = slice(row.query, row.query + row.count)
            out[own] = _attend_prefill(q[own], layer, cache, row, self.scale)
        return out

    def _sight(
        self,
        tables: Tensor,
        position: NDArray[np.int64],
        count: NDArray[np.int64],
        query: NDArray[np.int64],
        window: int,
    ) -> Sight:
        """Work out what rows see through `window` (0: everything); their tokens begin at `query` among the step's."""
        lengths = position + count
        start = np.maximum(position - window + 1, 0) if window else np.zeros_like(position)
        singles, several = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
        tokens = int(count.sum())
        return Sight(
            decode=tuple(
                self._decode_group(tables, rows, start[rows], lengths[rows], query[rows], tokens)
                for rows in _alike(lengths - start, singles)
            ),
            prefill=tuple(
                self._prefill_row(tables[r], int(query[r]), int(position[r]), int(count[r]), int(start[r]), window)
                for r in several.tolist()
            ),
        )

    def _decode_group(
        self,
        tables: Tensor,
        rows: NDArray[np.int64],
        start: NDArray[np.int64],
        lengths: NDArray[np.int64],
        query: NDArray[np.int64],
        tokens: int,
    ) -> DecodeGroup:
        device, spans = tables.device, lengths - start
        longest = int(spans.max())
        every = torch.arange(longest, device=device)
        last = _to(spans - 1, device)[:, None]
        # A place past the end may hold anything, NaN too, and 0 · NaN is NaN: look at the last real position instead.
        seen = torch.minimum(every, last)
        if start.any():
            seen = seen + _to(start, device)[:, None]
        block = tables[_to(rows, device)].long().gather(1, seen // self.block_size)
        where = (block * self.block_size + seen % self.block_size).flatten()
        mask = None
        if int(spans.min()) < longest:
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=device)
            mask = mask.masked_fill_(every > last, float("-inf"))[:, None, None]
        whole = len(rows) == tokens and bool((query == np.arange(tokens)).all())
        return DecodeGroup(None if whole else _to(query, device), where, longest, mask)

    def _prefill_row(self, table: Tensor, query: int, position: int, count: int, start: int, window: int) -> PrefillRow:
        end = position + count
        every = torch.arange(start, end, device=table.device)
        where = table.long()[every // self.block_size] * self.block_size + every % self.block_size
        mask = None
        outgrown = 0 < window < end
        if position or outgrown:
            own = every[position - start :, None]
            hidden = every > own
            if outgrown:
                hidden |= every <= own - window
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=table.device)
            mask = mask.masked_fill_(hidden, float("-inf"))
        return PrefillRow(query, count, where, mask)


def _attend_decode(q: Tensor, layer: int, cache: KVCache, group: DecodeGroup, scale: float | None) -> Tensor:
    n, heads, head_dim = q.shape
    k, v = (x.view(n, group.length, -1, head_dim).transpose(1, 2) for x in cache.gather(layer, group.where))
    grouped = q.view(n, k.shape[1], -1, head_dim)  # [n, kv heads, heads of one group, head_dim]
    mixed = F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask, scale=scale)
    return mixed.reshape(n, heads, head_dim)


def _attend_prefill(q: Tensor, layer: int, cache: KVCache, row: PrefillRow, scale: float | None) -> Tensor:
    count, heads, head_dim = q.shape
    k, v = (x.transpose(0, 1)[:, None] for x in cache.gather(layer, row.where))  # [kv heads, 1, length, head_dim]
    kv_heads = k.shape[0]
    # [kv heads, heads of one group, count, head_dim]
    grouped = q.view(count, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    k, v = (x.expand(-1, heads // kv_heads, -1, -1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(grouped, k, v, attn_mask=row.mask, is_causal=row.mask is None, scale=scale)
    return mixed.flatten(0, 1).transpose(0, 1)


def _alike(spans: NDArray[np.int64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split rows so that none is padded beyond twice what it sees, unless that is little."""
    if not len(rows):
        return []
    classes = np.ceil(np.log2(np.maximum(spans[rows], _SHORT))).astype(np.int64)
    return [rows[classes == c] for c in np.unique(classes).tolist()]


def _to(values: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
