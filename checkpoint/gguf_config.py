"""`ModelConfig` from the metadata and the tensor names of a GGUF file."""

from __future__ import annotations

from typing import Any

from checkpoint.architectures import GGUF_ARCHITECTURES
from checkpoint.config import ModelConfig, RopeScaling, check_heads
from checkpoint.errors import CheckpointError
from checkpoint.fields import LARGEST_SIZE, MOST_LAYERS, Fields
from checkpoint.gguf_file import GGUFFile

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


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
    _refuse_what_would_be_computed_wrongly(file, own.values)
    heads, hidden = own.whole("attention.head_count"), own.whole("embedding_length")
    head_dim = own.whole("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.whole(key, head_dim) != head_dim:
            raise CheckpointError(f"{file.path}: {key} {own.whole(key)} differs from the key length {head_dim}")
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
        num_layers=own.whole("block_count", most=MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=own.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=own.whole("feed_forward_length"),
        rms_norm_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=own.number("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(file, own),
        max_position_embeddings=own.whole("context_length"),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=row.qk_norm,
        dtype=_DTYPES.get(embedding.storage_name, "float32"),
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=next(iter(tokenizer.token_ids("tokenizer.ggml.bos_token_id")), None),
        rope_interleaved=row.gguf_interleaved,
    )
    return check_heads(config, str(file.path))


def _refuse_what_would_be_computed_wrongly(file: GGUFFile, own: Any) -> None:
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise CheckpointError(f"{file.path}: a GGUF split over several files is not supported")
    if own.get("expert_count", 0):
        raise CheckpointError(f"{file.path}: a mixture of experts is not supported")
    if own.get("attention.sliding_window", 0):
        raise CheckpointError(f"{file.path}: sliding_window {own['attention.sliding_window']} is not supported")


def _rope_scaling(file: GGUFFile, own: Fields) -> RopeScaling:
    if "rope_freqs.weight" in file.tensors:
        if len(file.tensors["rope_freqs.weight"].shape) != 1:
            raise CheckpointError(f"{file.path}: tensor rope_freqs.weight must have one dimension")
        return RopeScaling("divisors", divisors=tuple(file.dequantize("rope_freqs.weight").tolist()))
    kind = own.values.get("rope.scaling.type", "linear" if "rope.scale_linear" in own.values else "none")
    if kind == "none":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", own.number("rope.scaling.factor", own.number("rope.scale_linear", 1.0)))
    raise CheckpointError(f"{file.path}: rope type {kind} is not supported; supported are none, linear")
