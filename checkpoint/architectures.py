"""The architectures that the lean decoder computes exactly, one row each.

To add one, add a row and a test of its logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the files of one architecture leave unsaid.

    `gguf` is its name there (None: llama.cpp lays it out in a way that is not read), `gguf_interleaved` whether its
    converter reorders q and k rows for it. `attention_bias`, `output_bias`, `mlp_bias` are what the model has when its
    configuration is silent (None: the key of that name decides, absent means no); so are `head_dim`, `kv_heads` (None:
    as many as query heads), `tied`, `rms_norm_eps` and `rope_theta`.

    `fused_projections`: its files have q, k and v in one tensor, gate and up in another. `multipliers`: it scales
    embeddings, attention, residuals and logits. `partly_rotated`: it may rotate a part of each head only.
    `longrope_names` are what it calls that rope type, `trained_positions` how far it was trained before that.
    `unrotated_every` n: layers n-1, 2n-1, … are not rotated unless the configuration names others.

    `windows` says which layers have the sliding window when the configuration does not list them: none ever, all,
    those from max_window_layers up, or the unrotated ones; all but "all" only if use_sliding_window is set, which "all"
    doesn't read. `window` is its size when the configuration has none.
    """

    gguf: str | None
    gguf_interleaved: bool = False
    attention_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None
    kv_heads: int | None = None
    tied: bool = False
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    fused_projections: bool = False
    multipliers: bool = False
    partly_rotated: bool = False
    longrope_names: tuple[str, ...] = ("longrope",)
    trained_positions: int | None = None
    unrotated_every: int | None = None
    windows: Literal["none", "all", "upper", "unrotated"] = "none"
    window: int | None = None


_MISTRAL = Architecture(
    "llama",  # as its GGUF files call themselves
    gguf_interleaved=True,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    kv_heads=8,
    windows="all",
    window=4096,
)

ARCHITECTURES = {
    "LlamaForCausalLM": Architecture("llama", gguf_interleaved=True),
    "MistralForCausalLM": _MISTRAL,
    "MinistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": Architecture(
        "qwen2", attention_bias=True, output_bias=False, mlp_bias=False, kv_heads=32, windows="upper", window=4096
    ),
    "Qwen3ForCausalLM": Architecture(
        "qwen3", mlp_bias=False, qk_norm=True, head_dim=128, kv_heads=32, windows="upper", window=4096
    ),
    "SmolLM3ForCausalLM": Architecture(
        "smollm3",
        gguf_interleaved=True,
        kv_heads=4,
        tied=True,
        rope_theta=2000000.0,
        unrotated_every=4,
        windows="unrotated",
    ),
    "GraniteForCausalLM": Architecture("granite", gguf_interleaved=True, multipliers=True),
    "Phi3ForCausalLM": Architecture(
        "phi3",
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        rms_norm_eps=1e-5,
        fused_projections=True,
        partly_rotated=True,
        longrope_names=("longrope", "su", "yarn"),
        trained_positions=4096,
        windows="all",
    ),
    "SeedOssForCausalLM": Architecture(None, output_bias=False, head_dim=128, kv_heads=8),
}

# Several names share "llama" and one layout there; the first one stands for all.
GGUF_ARCHITECTURES = {row.gguf: row for row in reversed(list(ARCHITECTURES.values())) if row.gguf is not None}
