"""What a layer does between its matrix products, in plain torch: on a CPU, and where there are no kernels of ours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kv_cache import KVCache
from gpu_worker.projection import Projection, projection
from gpu_worker.rope import rotate

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of a step's tokens, float32 [T, 1, pairs] each."""


class TorchOps:
    """The same verbs as `FusedOps`."""

    def __init__(self, epsilon: float, share: float) -> None:
        """`epsilon` is the norms'; a product goes into the residual times `share`."""
        self._epsilon, self._share = epsilon, share

    def projection(self, weight: Tensor, bias: Tensor | None = None) -> Projection:
        """As `FusedOps.projection`; on a CPU it may take the memory of `weight` for a copy that it lays out anew."""
        return projection(weight, bias)

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """As `FusedOps.add_norm`."""
        if delta is not None:
            residual.add_(delta, alpha=self._share)
        return self._norm(residual, weight)

    def rotation(self, table: Tensor, positions: Tensor) -> Rotation:
        """As `FusedOps.rotation`."""
        cos, sin = table[positions][:, None].chunk(2, dim=-1)
        return cos, sin

    def place(
        self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, rotation: Rotation | None, where: Tensor,
        cache: KVCache, layer: int, heads: int,
    ) -> Tensor:  # fmt: skip
        """As `FusedOps.place`."""
        kv_heads, head_dim = cache.k[layer].shape[2:]
        split = qkv.view(len(qkv), -1, head_dim)
        qk, v = split[:, : heads + kv_heads], split[:, heads + kv_heads :]
        if norms is not None:
            q_weight, k_weight = norms
            qk = torch.cat((self._norm(qk[:, :heads], q_weight), self._norm(qk[:, heads:], k_weight)), dim=1)
        if rotation is not None:
            qk = rotate(qk, *rotation)
        cache.write(layer, qk[:, heads:], v, where)
        return qk[:, :heads]

    def gate(self, gate_up: Tensor) -> Tensor:
        """As `FusedOps.gate`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        # torch squares and sums in float32 whatever x is.
        return F.rms_norm(x, weight.shape, weight, self._epsilon)
