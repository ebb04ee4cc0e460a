"""The decoder: the Llama family's forward pass over one step's tokens, whichever requests they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from checkpoint import ModelConfig
from gpu_worker.attention import Attention, StepPlaces
from gpu_worker.kv_cache import KVCache
from gpu_worker.projection import Projection, projection
from gpu_worker.rope import rope_table
from gpu_worker.torch_ops import TorchOps
from gpu_worker.weights import LayerWeights, ModelWeights

Rotation = TypeVar("Rotation")


class LayerOps(Protocol[Rotation]):
    """What a layer does between its matrix products: `TorchOps`, or `FusedOps` on a GPU."""

    def projection(self, weight: Tensor, bias: Tensor | None = None) -> Projection:
        """As `FusedOps.projection`."""

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """As `FusedOps.add_norm`."""

    def rotation(self, table: Tensor, positions: Tensor) -> Rotation:
        """As `FusedOps.rotation`."""

    def place(
        self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, rotation: Rotation | None, where: Tensor,
        cache: KVCache, layer: int, heads: int,
    ) -> Tensor:  # fmt: skip
        """As `FusedOps.place`."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """As `FusedOps.gate`."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's parameters, its matrices ready to multiply with."""

    input_norm: Tensor
    qkv: Projection
    norms: tuple[Tensor, Tensor] | None  # of queries and keys
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection

    @classmethod
    def taking_over(cls, weights: LayerWeights, ops: LayerOps[Any]) -> _Layer:
        q_norm, k_norm = weights.q_norm, weights.k_norm
        return cls(
            input_norm=weights.input_norm,
            qkv=ops.projection(weights.qkv, weights.qkv_bias),
            norms=None if q_norm is None or k_norm is None else (q_norm, k_norm),
            output=ops.projection(weights.output, weights.output_bias),
            mlp_norm=weights.mlp_norm,
            gate_up=ops.projection(weights.gate_up, weights.gate_up_bias),
            down=ops.projection(weights.down, weights.down_bias),
        )


class Decoder:
    """A model ready to compute on the device of its weights, for positions below `max_positions`.

    It takes the weights over: nobody else may use them any more.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        attention: Attention,
        max_positions: int | None = None,
        ops: LayerOps[Any] | None = None,
    ) -> None:
        """`ops` is plain torch's if none is given; `attention` and it must be at home on the same devices."""
        self.config, self.attention = config, attention
        self._ops: LayerOps[Any] = ops or TorchOps(config.rms_norm_eps, config.residual_multiplier)
        self.embedding, self._final_norm = weights.embedding, weights.norm
        self._layers = tuple(_Layer.taking_over(layer, self._ops) for layer in weights.layers)
        self._head_weight = weights.head
        self.head = projection(weights.head, keep=weights.head is weights.embedding)
        self.rope = rope_table(config, max_positions or config.default_model_len, weights.norm.device)
        self._rotated = tuple(i not in config.unrotated_layers for i in range(config.num_layers))

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, logits_at: Tensor | None, step: StepPlaces, cache: KVCache
    ) -> Tensor:
        """Write the K and V of `tokens` to `cache` and return logits: float32 [S, vocabulary].

        `tokens`, `positions`: int64 [T], row after row as `step` was prepared. `logits_at`: int64 [S], the places among
        the T tokens whose successor is wanted; S may be 0; None is all of them.
        """
        hidden = self._embedded_hidden(tokens, positions, step, cache)
        return self.scaled(self.head(hidden if logits_at is None else hidden.index_select(0, logits_at)))

    @torch.inference_mode()
    def forward_in_parts(
        self, tokens: Tensor, positions: Tensor, parts: Sequence[Tensor], step: StepPlaces, cache: KVCache
    ) -> Iterator[Tensor]:
        """As `forward`, but yield the logits at one after the other of several lots of places."""
        hidden = self._embedded_hidden(tokens, positions, step, cache)
        for logits_at in parts:
            yield self.scaled(self.head(hidden.index_select(0, logits_at)))

    def _embedded_hidden(self, tokens: Tensor, positions: Tensor, step: StepPlaces, cache: KVCache) -> Tensor:
        embedded = F.embedding(tokens, self.embedding)
        if self.config.embedding_multiplier != 1:
            embedded = embedded * self.config.embedding_multiplier
        return self.hidden(embedded, positions, step, cache)

    def hidden(self, embedded: Tensor, positions: Tensor, step: StepPlaces, cache: KVCache) -> Tensor:
        """Write K and V to `cache` and return what the head multiplies, [T, hidden]; `embedded` [T, hidden] is used up.

        `positions`: int [T].
        """
        ops, config = self._ops, self.config
        rotation = ops.rotation(self.rope, positions)
        residual, delta = embedded, None
        for i, layer in enumerate(self._layers):
            qkv = layer.qkv(ops.add_norm(residual, delta, layer.input_norm))
            turned = rotation if self._rotated[i] else None
            q = ops.place(qkv, layer.norms, turned, step.where, cache, i, config.num_heads)
            mixed = layer.output(self.attention.attend(i, q, cache, step).flatten(1))
            delta = layer.down(ops.gate(layer.gate_up(ops.add_norm(residual, mixed, layer.mlp_norm))))
        return ops.add_norm(residual, delta, self._final_norm)

    def head_into(self, hidden: Tensor, out: Tensor) -> None:
        """Put what the head gives, [T, vocabulary], into `out`; on a GPU, where weights stay as they are."""
        torch.mm(hidden, self._head_weight.t(), out=out)

    def scaled(self, raw: Tensor) -> Tensor:
        """Return logits as they are meant, float32, from what the head gave."""
        logits = raw.float()
        return logits if self.config.logits_scaling == 1 else logits / self.config.logits_scaling
