"""How a model in a GGUF file rotates."""

from __future__ import annotations

import math

from checkpoint.config import RopeScaling
from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields
from checkpoint.gguf_file import GGUFFile

_FREQUENCIES, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"

# The converter copies these from a configuration, where they replace what llama.cpp multiplies them with.
_UNCLEAR = tuple(f"rope.scaling.yarn_{name}" for name in ("attn_factor", "ext_factor", "log_multiplier"))


def read_gguf_rope(file: GGUFFile, own: Fields, context: int) -> RopeScaling:
    """Return the scaling that `file` asks for: keys of its architecture in `own`, `context` positions in all.

    llama3 and longrope have their divisors in tensors. Raises `CheckpointError` naming what is unknown, and what
    llama.cpp reads in another way than the configuration meant that it was written from.
    """
    kind = own.values.get("rope.scaling.type", "linear" if "rope.scale_linear" in own.values else "none")
    attention = own.number("rope.scaling.attn_factor", 1.0)
    if kind == "longrope" or _LONG in file.tensors or _SHORT in file.tensors:
        if kind not in ("none", "longrope"):
            raise CheckpointError(f"{file.path}: rope type {kind} is not supported together with tensor {_LONG}")
        return RopeScaling(
            "longrope",
            original_max_position_embeddings=own.whole("rope.scaling.original_context_length", context, least=2),
            divisors=_divisors(file, _SHORT),
            long_divisors=_divisors(file, _LONG),
            attention_factor=attention,
        )
    if attention != 1:
        raise CheckpointError(
            f"{file.path}: rope.scaling.attn_factor {attention} is not supported with rope type {kind}"
        )
    if _FREQUENCIES in file.tensors:
        if kind != "none":
            raise CheckpointError(f"{file.path}: rope type {kind} is not supported together with tensor {_FREQUENCIES}")
        return RopeScaling("divisors", divisors=_divisors(file, _FREQUENCIES))
    if kind == "none":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", own.number("rope.scaling.factor", own.number("rope.scale_linear", 1.0)))
    if kind == "yarn":
        for key in _UNCLEAR:
            if key in own.values:
                raise CheckpointError(f"{file.path}: {key} {own.values[key]} is not supported")
        factor = own.number("rope.scaling.factor")
        return RopeScaling(
            "yarn",
            factor,
            original_max_position_embeddings=own.whole("rope.scaling.original_context_length", context, least=2),
            attention_factor=0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0,
            beta_fast=own.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=own.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise CheckpointError(f"{file.path}: rope type {kind} is not supported; supported are none, linear, yarn, longrope")


def _divisors(file: GGUFFile, name: str) -> tuple[float, ...]:
    if name in file.tensors and len(file.tensors[name].shape) != 1:
        raise CheckpointError(f"{file.path}: tensor {name} must have one dimension")
    return tuple(file.dequantize(name).tolist())
