"""Tiny GGUF files, written by the gguf library from tiny transformers models as llama.cpp's converter does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests import gguf_blocks as blocks

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


MULTIPLIERS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def write_gguf(
    model: Any, path: Path, architecture: str, storage: str = "F32", keys: dict[str, Any] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Write `model` with its matrices stored as `storage`; return what they unpack to, by transformers' names.

    Types that the gguf library can't pack hold random blocks instead of the model's values. `keys` are added to the
    metadata, or replace what is there; None leaves one out.
    """
    config = model.config
    rope = config.rope_parameters
    writer = gguf.GGUFWriter(path, architecture)
    metadata: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope["rope_theta"],
    }
    head_dim = getattr(config, "head_dim", None)
    if head_dim:
        metadata |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    metadata |= _rope_keys(config) | {key: getattr(config, name, None) for name, key in MULTIPLIERS.items()}
    if architecture == "phi3":
        metadata["attention.sliding_window"] = config.sliding_window or 0
    metadata = {f"{architecture}.{key}": value for key, value in metadata.items()}
    metadata |= {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.bos_token_id": 1}
    for key, value in (metadata | (keys or {})).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_float32(key, value)
    unpacked = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.float().numpy()
        stored = storage if values.ndim == 2 else "F32"
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        paired = architecture in ("llama", "granite", "smollm3") and heads is not None
        data = _packed(_paired(values, heads or 1) if paired else values, stored)
        writer.add_tensor(gguf_name(name), data, raw_dtype=gguf.GGMLQuantizationType[stored])
        back = blocks.unpacked(stored, data).reshape(values.shape)
        unpacked[name] = _unpaired(back, heads or 1) if paired else back
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_divisors(model))
    if rope["rope_type"] == "longrope":
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unpacked


def _packed(values: NDArray[np.float32], storage: str) -> NDArray[np.uint8]:
    """Return uint8 of the shape of `values`, but bytes in the place of the last dimension."""
    try:
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[storage])
    except NotImplementedError:
        rows, columns = values.shape
        return blocks.random_blocks(storage, rows, columns, seed=values.size)
    return np.ascontiguousarray(packed).view(np.uint8)


def gguf_name(name: str) -> str:
    """Return what GGUF calls transformers' tensor `name`."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def _paired(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put row i of the first half of a head beside row i of the second: llama.cpp's order."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _unpaired(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    return np.stack([head[part::2] for head in np.split(rows, heads) for part in (0, 1)]).reshape(rows.shape)


def _rope_keys(config: Any) -> dict[str, Any]:
    rope, head_dim = config.rope_parameters, config.hidden_size // config.num_attention_heads
    keys: dict[str, Any] = {}
    if rope.get("partial_rotary_factor"):
        keys["rope.dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] in ("longrope", "yarn"):
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "longrope":
        trained = rope["original_max_position_embeddings"]
        longer = config.max_position_embeddings / trained
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(longer) / math.log(trained))
    return keys


def _rope_divisors(model: Any) -> NDArray[np.float32]:
    rotary, config = model.model.rotary_emb, model.config
    trained = 1.0 / (config.rope_parameters["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim))
    divisors: NDArray[np.float32] = (trained / rotary.inv_freq.numpy()).astype(np.float32)
    return divisors
