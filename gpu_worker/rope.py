"""Rotary position embedding: a table of cosines and sines, and the rotation of queries and keys by it.

The pairs are (i, i + head_dim/2), as in Hugging Face's checkpoints: https://arxiv.org/abs/2104.09864, section 3.4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from checkpoint import ModelConfig


def rope_frequencies(config: ModelConfig) -> Tensor:
    """Return radians per position of each pair: float32 [head_dim/2], on the CPU.

    In float32 like the code that the models were trained with: at position 100,000 the last bit decides some hundredths
    of a radian, so "more exact" would be less the same.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    trained = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling.kind == "linear":
        return trained / scaling.factor
    if scaling.kind == "divisors":
        return trained / torch.tensor(scaling.divisors, dtype=torch.float32)
    if scaling.kind == "llama3":
        # Short wavelengths keep their frequency, long ones are divided, and a ramp joins the two.
        wavelength = 2 * math.pi / trained
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = scaling.original_max_position_embeddings / wavelength
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - kept) * trained / scaling.factor + kept * trained
    return trained


def rope_table(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """Return cosines, then sines, of positions 0 … length-1: float32 [length, head_dim]."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rope_frequencies(config))
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x` [T, heads, head_dim] turned by `cos`, `sin` (float32 [T, 1, pairs]), rounded once.

    Dimensions beyond those pairs stay as they are.
    """
    pairs, wide = cos.shape[-1], x.float()
    first, second = wide[..., :pairs], wide[..., pairs : 2 * pairs]
    turned = [first * cos - second * sin, second * cos + first * sin]
    if 2 * pairs < x.shape[-1]:
        turned.append(wide[..., 2 * pairs :])
    return torch.cat(turned, dim=-1).to(x.dtype)
