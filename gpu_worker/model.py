"""The decoder: the Llama family's forward pass over one step's tokens, whichever requests they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from checkpoint import ModelConfig
from gpu_worker.attention import AnyStep, Attention
from gpu_worker.kv_cache import KVCache
from gpu_worker.projection import Projection, projection
from gpu_worker.rope import rope_table, rotate
from gpu_worker.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's parameters, its matrices ready to multiply with."""

    input_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection

    @classmethod
    def taking_over(cls, weights: LayerWeights) -> _Layer:
        return cls(
            input_norm=weights.input_norm,
            qkv=projection(weights.qkv, weights.qkv_bias),
            q_norm=weights.q_norm,
            k_norm=weights.k_norm,
            output=projection(weights.output, weights.output_bias),
            mlp_norm=weights.mlp_norm,
            gate_up=projection(weights.gate_up, weights.gate_up_bias),
            down=projection(weights.down, weights.down_bias),
        )


class Decoder:
    """A model ready to compute on the device of its weights, for positions below `max_positions`.

    It takes the weights over: nobody else may use them any more.
    """

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, attention: Attention, max_positions: int | None = None
    ) -> None:
        self.config, self.attention = config, attention
        self._embedding, self._final_norm = weights.embedding, weights.norm
        self._layers = tuple(_Layer.taking_over(layer) for layer in weights.layers)
        self._head = projection(weights.head, keep=weights.head is weights.embedding)
        self.rope = rope_table(config, max_positions or config.default_model_len, weights.norm.device)
        self._rotated = tuple(i not in config.unrotated_layers for i in range(config.num_layers))

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, logits_at: Tensor | None, step: AnyStep, cache: KVCache
    ) -> Tensor:
        """Write the K and V of `tokens` to `cache` and return logits: float32 [S, vocabulary].

        `tokens`, `positions`: int64 [T], row after row as `step` was prepared. `logits_at`: int64 [S], the places among
        the T tokens whose successor is wanted; S may be 0; None is all of them.
        """
        config = self.config
        cos, sin = self.rope[positions][:, None].chunk(2, dim=-1)
        share = config.residual_multiplier
        x = F.embedding(tokens, self._embedding)
        if config.embedding_multiplier != 1:
            x = x * config.embedding_multiplier
        for i, layer in enumerate(self._layers):
            mixed = self._attention(i, layer, self._norm(x, layer.input_norm), cos, sin, step, cache)
            x = torch.add(x, mixed, alpha=share)
            x = torch.add(x, self._mlp(layer, self._norm(x, layer.mlp_norm)), alpha=share)
        x = self._norm(x if logits_at is None else x.index_select(0, logits_at), self._final_norm)
        logits = self._head(x).float()
        return logits if config.logits_scaling == 1 else logits / config.logits_scaling

    def _attention(
        self, i: int, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, step: AnyStep, cache: KVCache
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = layer.qkv(x).view(len(x), -1, config.head_dim)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            qk = torch.cat((self._norm(qk[:, :heads], layer.q_norm), self._norm(qk[:, heads:], layer.k_norm)), dim=1)
        if self._rotated[i]:
            qk = rotate(qk, cos, sin)
        cache.write(i, qk[:, heads:], v, step.where)
        mixed = self.attention.attend(i, qk[:, :heads], cache, step)
        return layer.output(mixed.flatten(1))

    def _mlp(self, layer: _Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        return layer.down(F.silu(gate) * up)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        # torch squares and sums in float32 whatever x is.
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)
