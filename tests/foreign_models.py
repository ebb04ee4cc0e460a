"""Tiny random models that the lean decoder does not compute, one for each kind of difference."""

from __future__ import annotations

import math
from typing import Any

import torch

VOCAB = 131

_IDS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE = _IDS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT2 = _IDS | {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "learned positions, a tied head": ("GPT2LMHeadModel", GPT2),
    "another scale in each layer": ("GPT2LMHeadModel", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "one key head, fused projections": ("GPTBigCodeForCausalLM", GPT2 | {"multi_query": True}),
    "a parallel residual, partly rotated heads": ("GPTNeoXForCausalLM", SHAPE),
    "positions that begin at two, no scale": (
        "OPTForCausalLM",
        _IDS
        | {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
        | {"max_position_embeddings": 128, "word_embed_proj_dim": 64},
    ),
    "layer norms and biases everywhere": ("PhiForCausalLM", SHAPE),
    "a window in two of three layers, a scale of its own": (
        "Gemma3ForCausalLM",
        SHAPE
        | {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 40}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "bounded scores and logits": (
        "Gemma2ForCausalLM",
        SHAPE
        | {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 40}
        | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 5.0},
    ),
    "sinks": (
        "GptOssForCausalLM",
        SHAPE
        | {"head_dim": 16, "sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "a window everywhere": ("Starcoder2ForCausalLM", SHAPE | {"sliding_window": 11}),
    "scaled logits, interleaved rotation": ("CohereForCausalLM", SHAPE),
    "norms behind, not before": ("Olmo2ForCausalLM", SHAPE),
    "experts, stored apart": ("MixtralForCausalLM", SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "experts beside an expert for all": (
        "Qwen2MoeForCausalLM",
        SHAPE | _EXPERTS | {"shared_expert_intermediate_size": 32},
    ),
    "keys wider than values": (
        "DeepseekV3ForCausalLM",
        SHAPE
        | {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
        | {"qk_nope_head_dim": 16, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
        | {"topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    ),
}


def foreign_config(architecture: str, **changes: Any) -> Any:
    """Return transformers' configuration for an architecture, with `architectures` as a saved model has it."""
    import transformers

    config = getattr(transformers, architecture).config_class(**changes)
    config.architectures = [architecture]
    return config


def foreign_model(kind: str, **changes: Any) -> Any:
    """Return a transformers model in float32 whose weights are spread so that every part of it matters."""
    import transformers

    architecture, settings = KINDS[kind]
    config = foreign_config(architecture, **settings | changes)
    config._attn_implementation = "eager"  # the judge: in some releases sdpa leaves softcaps out
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                # GPT-2 keeps its matrices the other way round; their sides differ by no more than four.
                parameter.normal_(0.0, 1.5 / math.sqrt(min(parameter.shape[-2:])), generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.5, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model
