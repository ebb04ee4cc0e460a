"""The architectures that the lean decoder computes exactly, one row each.

To add one, add a row and a test of its logits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the files of one architecture leave unsaid.

    `gguf` is its name there, `gguf_interleaved` whether llama.cpp's converter reorders q and k rows for it.
    `attention_bias`, `output_bias`, `mlp_bias` are what the model has when its configuration is silent (None: the key
    of that name decides, absent means no); so is `head_dim`. `windowed` says that attention has a sliding window unless
    the configuration switches it off.
    """

    gguf: str
    gguf_interleaved: bool = False
    attention_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None
    windowed: bool = False


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture("llama", gguf_interleaved=True),
    # Its GGUF files call themselves llama too.
    "MistralForCausalLM": Architecture(
        "llama", gguf_interleaved=True, attention_bias=False, output_bias=False, mlp_bias=False, windowed=True
    ),
    "Qwen2ForCausalLM": Architecture("qwen2", attention_bias=True, output_bias=False, mlp_bias=False),
    "Qwen3ForCausalLM": Architecture("qwen3", mlp_bias=False, qk_norm=True, head_dim=128),
}

# Two names share "llama" and one layout there; the first one stands for both.
GGUF_ARCHITECTURES = {row.gguf: row for row in reversed(list(ARCHITECTURES.values()))}
