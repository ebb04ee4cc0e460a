"""Attention for models that bound their scores or give each head a sink: what torch's fused attention can't do."""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_worker.attention import AttentionShape, AttentionStep, TorchAttention
from gpu_worker.kv_cache import KVCache


class CappedAttention(TorchAttention):
    """`TorchAttention` with scores written out: c·tanh(score/c) under a softcap c, and sinks among the weights.

    A sink is a score of its own for each head, float [num_heads]: it takes its share of the softmax and gives nothing.
    """

    def __init__(
        self,
        shape: AttentionShape,
        block_size: int,
        dtype: torch.dtype,
        softcaps: tuple[float | None, ...],
        sinks: tuple[Tensor | None, ...],
    ) -> None:
        super().__init__(shape, block_size, dtype)
        self._softcaps, self._sinks = softcaps, sinks  # one for each layer

    def attend(self, layer: int, q: Tensor, cache: KVCache, step: AttentionStep) -> Tensor:
        """As `TorchAttention.attend`."""
        sight = step.sights[self._sight_of_layer[layer]]
        out = torch.empty_like(q)
        _, heads, head_dim = q.shape
        for group in sight.decode:
            at = torch.arange(len(q), device=q.device) if group.query is None else group.query
            k, v = (x.view(len(at), group.length, -1, head_dim) for x in cache.gather(layer, group.where))
            mixed = self._mixed(layer, q[at][:, None], k, v, None if group.mask is None else group.mask[:, :, None])
            out.index_copy_(0, at, mixed.view(len(at), heads, head_dim))
        for row in sight.prefill:
            own = slice(row.query, row.query + row.count)
            k, v = (x[None] for x in cache.gather(layer, row.where))
            mask = row.mask
            if mask is None:
                mask = torch.full((row.count, k.shape[1]), float("-inf"), device=q.device).triu(1)
            out[own] = self._mixed(layer, q[own][None], k, v, mask)[0]
        return out

    def _mixed(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return what `q` [n, count, heads, head_dim] makes of `k` and `v` [n, length, kv heads, head_dim]: as `q`.

        `mask`: 0 or -inf, in a shape that [n, kv heads, heads of one group, count, length] takes.
        """
        n, count, heads, head_dim = q.shape
        q = q.view(n, count, k.shape[2], -1, head_dim).permute(0, 2, 3, 1, 4)
        k, v = (x.transpose(1, 2)[:, :, None] for x in (k, v))
        scores = (q @ k.transpose(-1, -2)).float() * (self.scale or head_dim**-0.5)
        softcap, sinks = self._softcaps[layer], self._sinks[layer]
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if mask is not None:
            scores = scores + mask
        if sinks is not None:
            own = sinks.float().view(1, k.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, own), dim=-1)
        weights = scores.softmax(dim=-1)[..., : k.shape[-2]].to(v.dtype)
        return (weights @ v).permute(0, 3, 1, 2, 4).reshape(n, count, heads, head_dim)
