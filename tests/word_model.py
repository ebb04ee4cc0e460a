"""A model folder that holds a word tokenizer and no weights: all that a frontend reads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.word_tokenizer import TEMPLATE, word_text


def write_word_model(folder: Path, *words: str) -> Path:
    """Write the folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = word_text(*words).tokenizer.tokenizer
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": 256,
        "bos_token_id": None,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
