"""The tensors of a GGUF file under Hugging Face's names and in Hugging Face's row order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from checkpoint import GGUFFile, ModelConfig

# Part of the configuration: see RopeScaling.
_ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_shapes(file: GGUFFile) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by its Hugging Face name, from the header alone."""
    return {_name(file, name): tensor.shape for name, tensor in file.tensors.items() if name not in _ROPE}


def gguf_tensors(file: GGUFFile, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, float32 tensor), dequantised, with the rows of q and k back in their two halves."""
    for name in file.tensors:
        if name in _ROPE:
            continue
        tensor = torch.from_numpy(file.dequantize(name))
        if config.rope_interleaved and name.startswith("blk.") and name.split(".")[2] in ("attn_q", "attn_k"):
            heads = config.num_heads if name.split(".")[2] == "attn_q" else config.num_kv_heads
            tensor = _halves(tensor, heads)
        yield _name(file, name), tensor


def _halves(rows: Tensor, heads: int) -> Tensor:
    """Undo the pairing of rotary partners: rows x0 y0 x1 y1 … of a head become x0 x1 … y0 y1 …."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _name(file: GGUFFile, name: str) -> str:
    """Return Hugging Face's name, or the name itself when the decoder has no such part: the loader then refuses it."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _OF_A_LAYER:
        part = _OF_A_LAYER[parts[2]]
        if parts[2] == "ffn_up" and f"blk.{parts[1]}.ffn_gate.{kind}" not in file.tensors:
            part = "mlp.gate_up_proj"  # with the gate's rows first
        return f"model.layers.{parts[1]}.{part}.{kind}"
    return name
