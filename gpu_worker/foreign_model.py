"""A model that runs through transformers' own code and computes over our paged cache: slower, same answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from gpu_worker.attention import AttentionStep, TorchAttention
from gpu_worker.capped_attention import CappedAttention
from gpu_worker.foreign_attention import LayerAsk, UnlikeOursError, attending
from gpu_worker.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class ForeignShape:
    """What the layers of a model keep, and what they ask of attention (`AttentionShape`).

    Keys may be wider than values; `head_dim` is the wider of the two.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    layer_windows: tuple[int, ...]
    attention_scale: float
    asks: tuple[LayerAsk, ...]

    def attention(self, block_size: int, dtype: torch.dtype) -> TorchAttention:
        """Return the attention for such a model, for steps over blocks of `block_size` in `dtype`."""
        softcaps, sinks = tuple(ask.softcap for ask in self.asks), tuple(ask.sinks for ask in self.asks)
        if any(extra is not None for extra in softcaps + sinks):
            return CappedAttention(self, block_size, dtype, softcaps, sinks)
        return TorchAttention(self, block_size, dtype)


class ForeignModel:
    """What `Decoder` is for the Llama family, over a transformers model that calls our attention."""

    def __init__(self, model: PreTrainedModel, shape: ForeignShape, attention: TorchAttention) -> None:
        self.shape, self.attention = shape, attention
        self._model = model

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, logits_at: Tensor, step: AttentionStep, cache: KVCache
    ) -> Tensor:
        """Write the K and V of `tokens` to `cache` and return logits: float32 [S, vocabulary], as `Decoder.forward`."""
        shape = self.shape

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, ask: LayerAsk) -> Tensor:
            cache.write(layer, _widened(k, shape.head_dim), _widened(v, shape.head_dim), step.where)
            if ask.scale != shape.attention_scale:
                q = q * (ask.scale / shape.attention_scale)
            return self.attention.attend(layer, _widened(q, shape.head_dim), cache, step)[..., : v.shape[2]]

        with attending(attend):
            return logits_of(self._model, tokens, positions, logits_at)

    def forward_in_parts(
        self, tokens: Tensor, positions: Tensor, parts: Sequence[Tensor], step: AttentionStep, cache: KVCache
    ) -> Iterator[Tensor]:
        """As `Decoder.forward_in_parts`, by a run for each lot: what a model does behind its head is its own matter.

        All runs write the same K and V.
        """
        for logits_at in parts:
            yield self.forward(tokens, positions, logits_at, step, cache)


def logits_of(model: PreTrainedModel, tokens: Tensor, positions: Tensor, logits_at: Tensor) -> Tensor:
    """Run transformers' own code; arguments and logits (float32 [S, vocabulary]) are those of `Decoder.forward`."""
    output = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=logits_at)
    logits: Tensor = output.logits[0]
    return logits.float()


@torch.inference_mode()
def shape_of(model: PreTrainedModel) -> ForeignShape:
    """Return what the layers of `model` ask of attention, by asking; `UnlikeOursError` if no paged cache holds it."""
    layers: list[int] = []
    asks: list[LayerAsk] = []
    sizes: set[tuple[int, int, int]] = set()

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, ask: LayerAsk) -> Tensor:
        layers.append(layer)
        asks.append(ask)
        sizes.add((k.shape[1], k.shape[2], v.shape[2]))
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

    tokens = torch.arange(2, device=model.device)
    with attending(attend):
        logits = logits_of(model, tokens, tokens, tokens)
    if logits.shape[1] != model.config.vocab_size:
        raise UnlikeOursError(f"it gives {logits.shape[1]} logits for {model.config.vocab_size} tokens")
    if not layers or layers != list(range(len(layers))):
        raise UnlikeOursError("not each of its layers attends once, in order")
    if len(sizes) > 1:
        raise UnlikeOursError("its layers differ in number or size of their key-value heads")
    ((kv_heads, key_dim, value_dim),) = sizes
    return ForeignShape(
        num_layers=len(layers),
        num_kv_heads=kv_heads,
        head_dim=max(key_dim, value_dim),
        layer_windows=tuple(ask.window or 0 for ask in asks),
        attention_scale=asks[0].scale,
        asks=tuple(asks),
    )


def _widened(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x
