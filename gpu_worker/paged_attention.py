"""Attention on a GPU by kernels over the paged cache: one for rows of one token, one for tiles of longer rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.attention import AttentionShape
from gpu_worker.kv_cache import KVCache
from gpu_worker.paged_decode import PagedDecode
from gpu_worker.paged_prefill import PagedPrefill, Tiles, tile_tokens

LEAST_PARTS_BESIDE_PROMPTS = 4
"""A step with prompts has room for many rows, and often few are there: those few are shared out all the same."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of one token each, int32 [R]; a row of length 0 is none."""

    at: Tensor | None  # which of the step's tokens; None: all of them in order
    slots: Tensor
    lengths: Tensor  # positions that each sees, its own included


@dataclass(frozen=True, slots=True)
class PagedAttentionStep:
    """A step as the device has it; the host knows its shapes alone."""

    where: Tensor  # int64 [T]: where each token's K and V are to be written
    tables: Tensor  # int32 [slots, blocks]
    rows: DecodeRows
    tiles: Tiles | None


class PagedAttention:
    """The kernels, for one model and at most `rows` rows of one token."""

    def __init__(
        self, shape: AttentionShape, num_heads: int, block_size: int, dtype: torch.dtype, rows: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.tile_tokens = tile_tokens(num_heads, shape.num_kv_heads, dtype)
        self._windows = shape.layer_windows or (0,) * shape.num_layers
        heads = (num_heads, shape.num_kv_heads, shape.head_dim, block_size, shape.attention_scale, device)
        self._decode = PagedDecode(rows, *heads, least_parts=LEAST_PARTS_BESIDE_PROMPTS)
        self._prefill = PagedPrefill(*heads)

    def parts_for(self, rows: int) -> int:
        """Return into how many parts the past of each of so many rows is split: kernels differ by that."""
        return self._decode.parts_for(rows)

    def attend(self, layer: int, q: Tensor, cache: KVCache, step: PagedAttentionStep) -> Tensor:
        """Return the attention of each token over its own past, [T, num_heads, head_dim], as `q`, which is contiguous.

        The step's own K and V must have been written to `cache` before.
        """
        keys, values, window, rows = cache.k[layer], cache.v[layer], self._windows[layer], step.rows
        if step.tiles is None:
            return self._decode.attend(q, keys, values, step.tables, rows.slots, rows.lengths, window)
        out = torch.empty_like(q)
        self._prefill.attend(q, keys, values, step.tables, step.tiles, window, out)
        if rows.at is not None and len(rows.slots):
            self._decode.attend_some(q, keys, values, step.tables, rows.slots, rows.lengths, window, rows.at, out)
        return out
