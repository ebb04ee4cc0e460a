"""`ModelConfig` from a folder in the layout of Hugging Face: config.json and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint.architectures import ARCHITECTURES
from checkpoint.config import ModelConfig, check_heads
from checkpoint.errors import CheckpointError
from checkpoint.fields import MOST_LAYERS, Fields
from checkpoint.hf_layers import read_layer_windows, read_unrotated_layers
from checkpoint.hf_rope import read_rope
from checkpoint.small_file import parse_json, read_small_file

_DTYPES = ("float32", "bfloat16", "float16")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} when there is no such file; `CheckpointError` when it is something else."""
    try:
        value = parse_json(read_small_file(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value


def architecture_of(raw: Mapping[str, Any]) -> str:
    """Return the name of the architecture that config.json, read as `raw`, declares; it may be nonsense."""
    names = raw.get("architectures") or []
    return str(names[0] if isinstance(names, list) and names else raw.get("model_type"))


def read_folder_config(folder: Path) -> ModelConfig:
    """Return the configuration of the model in `folder`; `CheckpointError` names what is missing or unsupported."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no config.json")
    raw = read_json(path)
    fields = Fields(raw, str(path))
    name = architecture_of(raw)
    if name not in ARCHITECTURES:
        raise CheckpointError(f"{path}: architecture {name} is not supported; supported are {', '.join(ARCHITECTURES)}")
    row = ARCHITECTURES[name]
    _refuse_what_would_be_computed_wrongly(raw, path)
    heads, hidden = fields.whole("num_attention_heads"), fields.whole("hidden_size")
    head_dim = fields.whole("head_dim", row.head_dim or hidden // heads)
    # Null means as many as query heads everywhere, no word of it what the architecture has.
    silent = row.kv_heads if "num_key_value_heads" not in raw else None
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    max_positions = fields.whole("max_position_embeddings")
    rope = read_rope(raw, row, path, max_positions)
    unrotated = read_unrotated_layers(raw, row, path, layers)
    biased = fields.flag("attention_bias", False)
    config = ModelConfig(
        architecture=name,
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.whole("num_key_value_heads", silent or heads),
        head_dim=head_dim,
        intermediate_size=fields.whole("intermediate_size"),
        rms_norm_eps=fields.number("rms_norm_eps", row.rms_norm_eps),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        max_position_embeddings=max_positions,
        tie_word_embeddings=fields.flag("tie_word_embeddings", row.tied),
        attention_bias=biased if row.attention_bias is None else row.attention_bias,
        output_bias=biased if row.output_bias is None else row.output_bias,
        mlp_bias=fields.flag("mlp_bias", False) if row.mlp_bias is None else row.mlp_bias,
        qk_norm=row.qk_norm,
        dtype=checkpoint_dtype(raw, path),
        eos_token_ids=eos_token_ids(folder, fields),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        fused_projections=row.fused_projections,
        rotary_dim=None if rope.share == 1 else int(head_dim * rope.share),
        unrotated_layers=unrotated,
        layer_windows=read_layer_windows(raw, row, path, layers, unrotated),
        attention_scale=fields.number("attention_multiplier", 1.0) if row.multipliers else None,
        embedding_multiplier=fields.number("embedding_multiplier", 1.0) if row.multipliers else 1.0,
        residual_multiplier=fields.number("residual_multiplier", 1.0) if row.multipliers else 1.0,
        logits_scaling=fields.number("logits_scaling", 1.0) if row.multipliers else 1.0,
    )
    return check_heads(config, str(path))


def _refuse_what_would_be_computed_wrongly(raw: Mapping[str, Any], path: Path) -> None:
    activation = raw.get("hidden_act") or raw.get("hidden_activation") or "silu"
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"{path}: activation {activation} is not supported")


def checkpoint_dtype(raw: Mapping[str, Any], path: Path) -> str:
    """Return the dtype that config.json at `path`, read as `raw`, declares: "float32" if it is silent."""
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise CheckpointError(f"{path}: dtype {name} is not supported; supported are {', '.join(_DTYPES)}")
    return name


def eos_token_ids(folder: Path, config: Fields) -> tuple[int, ...]:
    """Return the union of all end tokens that the files in `folder` declare, `config` its config.json, ascending."""
    ids = set(config.token_ids("eos_token_id"))
    path = folder / "generation_config.json"
    ids.update(Fields(read_json(path), str(path)).token_ids("eos_token_id"))
    tokenizer = read_json(folder / "tokenizer_config.json")
    eos = tokenizer.get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    if isinstance(text, str):
        ids.update(_ids_of_added_token(folder, tokenizer, text))
    return tuple(sorted(ids))


def _ids_of_added_token(folder: Path, tokenizer: Mapping[str, Any], text: str) -> list[int]:
    decoder = tokenizer.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        found = [i for i, token in decoder.items() if isinstance(token, dict) and token.get("content") == text]
        if found:
            return [_token_id(i, folder / "tokenizer_config.json") for i in found]
    path = folder / "tokenizer.json"
    added = read_json(path).get("added_tokens") or []
    if not isinstance(added, list):
        raise CheckpointError(f"{path}: added_tokens must be a list")
    found = [token.get("id") for token in added if isinstance(token, dict) and token.get("content") == text]
    return [_token_id(i, path) for i in found]


def _token_id(value: Any, path: Path) -> int:
    if not isinstance(value, int | str) or not str(value).isdecimal() or int(value) >= 2**32:
        raise CheckpointError(f"{path}: an added token has the id {value!r}")
    return int(value)
