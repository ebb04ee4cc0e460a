"""Shapes of well-known models, to be computed with random weights: how long a step takes is in the shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checkpoint import locate

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "torch_dtype": "bfloat16",
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "torch_dtype": "bfloat16",
    },
}
"""config.json of each, as far as it shapes the computation."""


@contextmanager
def shape_of(model: str) -> Iterator[Path]:
    """Yield a folder that describes a model: one of `SHAPES` by its name, or a folder (or .gguf file) that is there.

    It need hold no weights. A named shape's folder is gone afterwards. Raises `CheckpointError`.
    """
    if model not in SHAPES:
        yield locate(model, need_weights=False)
        return
    with TemporaryDirectory(prefix="stepahead-") as directory:
        folder = Path(directory) / model
        write_shape(model, folder)
        yield folder


def write_shape(name: str, folder: Path) -> None:
    """Make a folder with the config.json of one of `SHAPES`, and a tokenizer that has a word for each of its tokens."""
    folder.mkdir()
    config = SHAPES[name]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_words(config["vocab_size"])))


def _words(vocab_size: int) -> dict[str, Any]:
    """Return a tokenizer.json in which token n is the word "n": text comes out at the cost of real text."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {str(n): n for n in range(vocab_size)}, "unk_token": "0"},
    }
