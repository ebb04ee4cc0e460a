"""The parameters of a decoder, merged as the forward pass wants them, and which checkpoint tensor fills which part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. A matrix is [out, in]; `qkv` stacks q, k and v along out, `gate_up` gate and up."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a decoder's parameters. With tied embeddings `head` is `embedding` itself."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor  # [vocabulary, hidden]


def empty_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Return parameters of the right shapes with undefined values."""

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    hidden, wide = config.hidden_size, config.intermediate_size
    q = config.num_heads * config.head_dim
    qkv = q + 2 * config.num_kv_heads * config.head_dim

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=new(hidden),
            qkv=new(qkv, hidden),
            qkv_bias=new(qkv) if config.attention_bias else None,
            q_norm=new(config.head_dim) if config.qk_norm else None,
            k_norm=new(config.head_dim) if config.qk_norm else None,
            output=new(hidden, q),
            output_bias=new(hidden) if config.output_bias else None,
            mlp_norm=new(hidden),
            gate_up=new(2 * wide, hidden),
            gate_up_bias=new(2 * wide) if config.mlp_bias else None,
            down=new(hidden, wide),
            down_bias=new(hidden) if config.mlp_bias else None,
        )

    embedding = new(config.vocab_size, hidden)
    head = embedding if config.tie_word_embeddings else new(config.vocab_size, hidden)
    layers = tuple(layer() for _ in range(config.num_layers))
    return ModelWeights(embedding=embedding, layers=layers, norm=new(hidden), head=head)


def destinations(weights: ModelWeights, config: ModelConfig) -> dict[str, Tensor]:
    """Return, for each tensor that a checkpoint must have, the view that it fills; names as Hugging Face has them.

    Every element of every parameter is in exactly one view.
    """
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention: tuple[int, ...] = (q, kv, kv)
    wide: tuple[int, ...] = (config.intermediate_size, config.intermediate_size)
    qkv_names: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up_names: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    if config.fused_projections:
        qkv_names, attention, gate_up_names, wide = ("self_attn.qkv_proj",), (), ("mlp.gate_up_proj",), ()
    views: dict[str, Tensor] = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tie_word_embeddings:
        views["lm_head.weight"] = weights.head
    for i, layer in enumerate(weights.layers):
        parts: list[tuple[tuple[str, ...], str, Tensor | None, tuple[int, ...]]] = [
            (("input_layernorm",), "weight", layer.input_norm, ()),
            (("post_attention_layernorm",), "weight", layer.mlp_norm, ()),
            (qkv_names, "weight", layer.qkv, attention),
            (qkv_names, "bias", layer.qkv_bias, attention),
            (("self_attn.q_norm",), "weight", layer.q_norm, ()),
            (("self_attn.k_norm",), "weight", layer.k_norm, ()),
            (("self_attn.o_proj",), "weight", layer.output, ()),
            (("self_attn.o_proj",), "bias", layer.output_bias, ()),
            (gate_up_names, "weight", layer.gate_up, wide),
            (gate_up_names, "bias", layer.gate_up_bias, wide),
            (("mlp.down_proj",), "weight", layer.down, ()),
            (("mlp.down_proj",), "bias", layer.down_bias, ()),
        ]
        for modules, kind, parameter, rows in parts:
            if parameter is not None:
                pieces = torch.split(parameter, list(rows)) if rows else (parameter,)
                for module, piece in zip(modules, pieces, strict=True):
                    views[f"model.layers.{i}.{module}.{kind}"] = piece
    return views
