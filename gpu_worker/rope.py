"""Rotary position embedding: a table of cosines and sines, and the rotation of queries and keys by it.

The pairs are (i, i + head_dim/2), as in Hugging Face's checkpoints: https://arxiv.org/abs/2104.09864, section 3.4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from checkpoint import ModelConfig


def rope_frequencies(config: ModelConfig, length: int) -> Tensor:
    """Return radians per position of each pair, when `length` positions are served: float32 [pairs], on the CPU.

    Operation by operation in float32 as in transformers, with which the models were trained or tested: at position
    100,000 the last bit decides some hundredths of a radian, so "more exact" would be less the same.

    transformers chooses the frequencies of dynamic and longrope by the length that a request has reached, and so turns
    keys that are in its cache already by others than those that follow. Here a rotation is a function of the position
    alone: the length that may be reached decides, once and for all requests.
    """
    scaling = config.rope_scaling
    dim = config.rotary_dim or config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    theta: float | Tensor = config.rope_theta
    if scaling.kind == "dynamic" and length > scaling.original_max_position_embeddings:
        reached = torch.tensor(length)
        stretch = (scaling.factor * reached / scaling.original_max_position_embeddings) - (scaling.factor - 1)
        theta = theta * stretch ** (dim / (dim - 2))
    trained_wavelengths = theta**exponents  # over 2π
    if scaling.kind == "yarn":
        return _yarn(config, trained_wavelengths)
    if scaling.kind == "longrope":
        beyond = length > scaling.original_max_position_embeddings
        divisors = torch.tensor(scaling.long_divisors if beyond else scaling.divisors, dtype=torch.float32)
        return 1.0 / (divisors * trained_wavelengths)
    trained = 1.0 / trained_wavelengths
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


def _yarn(config: ModelConfig, wavelengths: Tensor) -> Tensor:
    """Divide the frequencies of pairs that turn little over the trained length, keep those that turn often."""
    scaling, dim = config.rope_scaling, config.rotary_dim or config.head_dim

    def pair_that_turns(times: float) -> float:
        trained = scaling.original_max_position_embeddings
        return (dim * math.log(trained / (times * 2 * math.pi))) / (2 * math.log(config.rope_theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return (1.0 / (scaling.factor * wavelengths)) * (1 - kept) + (1.0 / wavelengths) * kept


def rope_table(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """Return cosines, then sines, of positions 0 … length-1, when so many are served: float32 [length, 2 · pairs]."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rope_frequencies(config, length))
    factor = config.rope_scaling.attention_factor
    return torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1).to(device)


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
