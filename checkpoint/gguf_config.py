"""`ModelConfig` from the metadata and the tensor names of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint.architectures import GGUF_ARCHITECTURES, Architecture
from checkpoint.config import ModelConfig, check_heads
from checkpoint.errors import CheckpointError
from checkpoint.fields import LARGEST_SIZE, MOST_LAYERS, Fields
from checkpoint.gguf_file import GGUFFile
from checkpoint.gguf_rope import read_gguf_rope

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_MULTIPLIERS = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Return the configuration of the model in `file`; `CheckpointError` names what is missing or unsupported."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        known = ", ".join(sorted(GGUF_ARCHITECTURES))
        raise CheckpointError(f"{file.path}: architecture {name} is not supported; supported are {known}")
    row = GGUF_ARCHITECTURES[name]
    own = Fields(
        {k.removeprefix(f"{name}."): v for k, v in file.metadata.items() if k.startswith(f"{name}.")},
        f"{file.path}: {name}",
    )
    _refuse_what_would_be_computed_wrongly(file, row, own.values)
    heads, hidden = own.whole("attention.head_count"), own.whole("embedding_length")
    layers = own.whole("block_count", most=MOST_LAYERS)
    head_dim = own.whole("attention.key_length", hidden // heads)
    rotary_dim = own.whole("rope.dimension_count", head_dim)
    for key in ("attention.value_length", *(() if row.partly_rotated else ("rope.dimension_count",))):
        if own.whole(key, head_dim) != head_dim:
            raise CheckpointError(f"{file.path}: {key} {own.whole(key)} differs from the key length {head_dim}")
    window = own.whole("attention.sliding_window", 0, least=0)
    context = own.whole("context_length")
    every = row.unrotated_every or layers + 1
    tokenizer = Fields(file.metadata, str(file.path))
    # A chat model may end its turn, its message or its text.
    ends = {i for kind in ("eos", "eot", "eom") for i in tokenizer.token_ids(f"tokenizer.ggml.{kind}_token_id")}
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight is missing")
    if embedding.shape[0] > LARGEST_SIZE:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight has {embedding.shape[0]} rows")
    config = ModelConfig(
        architecture=name,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=own.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=own.whole("feed_forward_length"),
        rms_norm_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=own.number("rope.freq_base", 10000.0),
        rope_scaling=read_gguf_rope(file, own, context),
        max_position_embeddings=context,
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=row.qk_norm,
        dtype=_DTYPES.get(embedding.storage_name, "float32"),
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=next(iter(tokenizer.token_ids("tokenizer.ggml.bos_token_id")), None),
        rope_interleaved=row.gguf_interleaved,
        fused_projections=row.fused_projections,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        unrotated_layers=frozenset(range(every - 1, layers, every)),
        layer_windows=(window,) * layers if window else (),
        # Zero is what llama.cpp takes an absent one for.
        attention_scale=own.number("attention.scale") if own.values.get("attention.scale") else None,
        embedding_multiplier=own.number("embedding_scale") if own.values.get("embedding_scale") else 1.0,
        residual_multiplier=own.number("residual_scale") if own.values.get("residual_scale") else 1.0,
        logits_scaling=own.number("logit_scale") if own.values.get("logit_scale") else 1.0,
    )
    return check_heads(config, str(file.path))


def _refuse_what_would_be_computed_wrongly(file: GGUFFile, row: Architecture, own: Mapping[str, Any]) -> None:
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise CheckpointError(f"{file.path}: a GGUF split over several files is not supported: join them")
    if own.get("expert_count", 0):
        raise CheckpointError(f"{file.path}: a mixture of experts is not supported")
    if own.get("attention.sliding_window", 0) and row.gguf != "phi3":
        raise CheckpointError(f"{file.path}: sliding_window {own['attention.sliding_window']} is not supported")
    for key in _MULTIPLIERS:
        if own.get(key, 0) not in (0, 1) and not row.multipliers:
            raise CheckpointError(f"{file.path}: {key} {own[key]} is not supported for {row.gguf}")
    if own.get("rope.scaling.finetuned") is False and row.multipliers:
        raise CheckpointError(f"{file.path}: {row.gguf} without rotation is not supported")
