"""Tiny random models in every shape that the decoder claims, made and saved by transformers, the judge as well."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCAB = 131

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 1.7,
}


def _longrope(pairs: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.0 + 1.5 * i for i in range(pairs)],
    }


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped queries": ("Llama", {}),
    "one key head per query head": ("Llama", {"num_key_value_heads": 4}),
    "a single key head": ("Llama", {"num_key_value_heads": 1}),
    "a head wider than hidden over heads": ("Llama", {"head_dim": 32}),
    "a wide head with biases": ("Llama", {"head_dim": 32, "attention_bias": True}),
    "a head of 80": ("Llama", {"head_dim": 80, "num_key_value_heads": 1}),
    "biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "another theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "dynamic rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.7}, "max_position_embeddings": 128},
    ),
    "llama3 rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "yarn rope": ("Llama", {"rope_parameters": _YARN, "head_dim": 32}),
    "yarn rope with its own factors": (
        "Qwen2",
        {
            "rope_parameters": _YARN
            | {"mscale": 1.2, "mscale_all_dim": 0.7, "beta_fast": 16, "beta_slow": 2, "truncate": False}
        },
    ),
    "Mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "Mistral with a window": ("Mistral", {"sliding_window": 48}),
    "Ministral": (
        "Ministral",
        {
            "sliding_window": 20,
            "head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "Qwen2": ("Qwen2", {"rms_norm_eps": 1e-6}),
    "Qwen2 with a window above": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "Qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "Qwen3 with a head of 96": ("Qwen3", {"head_dim": 96, "attention_bias": True}),
    "SmolLM3 of four layers": ("SmolLM3", {"num_hidden_layers": 4}),
    "SmolLM3 with windows": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 25, "tie_word_embeddings": False},
    ),
    "Granite": ("Granite", _MULTIPLIERS | {"tie_word_embeddings": True}),
    "Granite with biases": ("Granite", _MULTIPLIERS | {"attention_bias": True, "mlp_bias": True}),
    "Phi3": ("Phi3", {"sliding_window": 64}),
    "Phi3 partly rotated by longrope": (
        "Phi3",
        {
            "rope_parameters": _longrope(6) | {"partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
    ),
    "SeedOss": ("SeedOss", {"head_dim": 32}),
}


def tiny_model(variant: str, seed: int = 0, **changes: Any) -> Any:
    """Return a transformers model in float32 whose weights are spread so that every part of it matters.

    `changes` are made to the variant's configuration.
    """
    import transformers

    family, own = VARIANTS[variant]
    config = getattr(transformers, f"{family}Config")(**(_SHAPE | own | changes))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 1.5 / math.sqrt(parameter.shape[1]), generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.5, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


def save(model: Any, folder: Path, **options: Any) -> Path:
    """Save `model` as safetensors into `folder` and return it."""
    model.save_pretrained(folder, **options)
    return folder


def change_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values |= changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def reference_logits(model: Any, tokens: list[int]) -> Tensor:
    """Return the model's own logits: float32 [tokens, vocabulary]."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits
