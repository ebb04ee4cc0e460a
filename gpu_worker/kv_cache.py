"""The paged KV cache: one pool of blocks, shared by all layers and requests.

block      0        1        2        3    …      a block holds `block_size` positions of one request
         ┌────────┬────────┬────────┬────────┐
layer 0  │ padding│  K V   │  K V   │        │    block 0 belongs to padded rows: they must write somewhere, and
layer 1  │ padding│  K V   │  K V   │        │    what they write must never be anyone's; the scheduler does not
  …      └────────┴────────┴────────┴────────┘    hand it out
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class KVShape(Protocol):
    """What a model keeps of each position; a `ModelConfig` says it for the lean decoder."""

    @property
    def num_layers(self) -> int:
        """Layers that keep keys and values."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys in a layer, the same everywhere, and as many of values."""

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """`k` and `v` of each layer: [num_blocks, block_size, num_kv_heads, head_dim].

    Written on the compute stream only.
    """

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    block_size: int

    @classmethod
    def allocate(
        cls,
        shape: KVShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        fill: float | None = None,
    ) -> KVCache:
        """Allocate a pool; its contents are undefined, or `fill` everywhere (tests use NaN)."""
        sizes = (2, shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        pool = torch.empty(sizes, dtype=dtype, device=device)
        if fill is not None:
            pool.fill_(fill)
        return cls(k=pool[0].unbind(), v=pool[1].unbind(), block_size=block_size)

    def write(self, layer: int, k: Tensor, v: Tensor, where: Tensor) -> None:
        """Store `k` and `v` [T, num_kv_heads, head_dim] at `where`: int64 [T], block · block_size + offset."""
        self.k[layer].flatten(0, 1).index_copy_(0, where, k)
        self.v[layer].flatten(0, 1).index_copy_(0, where, v)

    def gather(self, layer: int, where: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of k and v at `where` (int64 [n]): two of [n, num_kv_heads, head_dim]."""
        k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
        return k.index_select(0, where), v.index_select(0, where)


def bytes_per_block(shape: KVShape, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes that one block takes over all layers, K and V together."""
    return 2 * shape.num_layers * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize
