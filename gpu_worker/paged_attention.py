"""Attention on a GPU: pure decode steps by the paged kernels, everything else in plain torch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.attention import AnyStep, AttentionShape, AttentionStep, DecodeStep, TorchAttention
from gpu_worker.kv_cache import KVCache
from gpu_worker.paged_decode import PagedDecode


class PagedAttention:
    """What `TorchAttention` is, and a way for steps that live in a CUDA graph."""

    def __init__(
        self, shape: AttentionShape, num_heads: int, block_size: int, dtype: torch.dtype, rows: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Serve decode steps of at most `rows` rows."""
        self._torch = TorchAttention(shape, block_size, dtype)
        self.block_size = block_size
        self._windows = shape.layer_windows or (0,) * shape.num_layers
        self._decode = PagedDecode(
            rows, num_heads, shape.num_kv_heads, shape.head_dim, block_size, shape.attention_scale, device
        )

    def prepare(self, tables: Tensor, position: NDArray[np.int32], count: NDArray[np.int32]) -> AttentionStep:
        """As `TorchAttention.prepare`."""
        return self._torch.prepare(tables, position, count)

    def decode(self, tables: Tensor, slots: Tensor, positions: Tensor) -> DecodeStep:
        """Return the step of one token a row, at `positions` (int64 [R]) of `slots` (int32 [R]); all on the device."""
        block = tables[slots.long(), positions // self.block_size].long()
        where = block * self.block_size + positions % self.block_size
        return DecodeStep(where, tables, slots, (positions + 1).int())

    def attend(self, layer: int, q: Tensor, cache: KVCache, step: AnyStep) -> Tensor:
        """As `TorchAttention.attend`, for either kind of step."""
        if isinstance(step, AttentionStep):
            return self._torch.attend(layer, q, cache, step)
        return self._decode.attend(
            q, cache.k[layer], cache.v[layer], step.tables, step.slots, step.lengths, self._windows[layer]
        )
