"""How many operations a model's matrix products take; a sum of products counts as two for each of its terms."""

from __future__ import annotations

import torch

from checkpoint import ModelConfig
from gpu_worker.weights import empty_weights

META = torch.device("meta")


def prompt_operations(model: ModelConfig, prompts: int, length: int) -> int:
    """Return the operations of so many prompts of `length` tokens, each of which yields one token.

    Two for each parameter of a layer's matrices and token, and for each of the head's and prompt; of attention, in each
    layer, q·k and the weighing of v for each head and each pair of a query and a key that it sees.
    """
    weights = empty_weights(model, torch.bfloat16, META)
    matrices = sum(
        each.numel() for layer in weights.layers for each in (layer.qkv, layer.output, layer.gate_up, layer.down)
    )
    windows = model.layer_windows or (0,) * model.num_layers
    seen = sum(pairs(length, window) for window in windows)
    attention = 4 * model.num_heads * model.head_dim * seen
    return prompts * (2 * matrices * length + 2 * weights.head.numel() + attention)


def pairs(length: int, window: int = 0) -> int:
    """Return how many keys all tokens of a prompt see together: its own and those before, or the last `window`."""
    full = length if not window else min(length, window)
    return full * (full + 1) // 2 + (length - full) * full
