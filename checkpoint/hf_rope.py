"""How a model of Hugging Face's layout rotates: theta, the scaling of its frequencies, the share of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.architectures import Architecture
from checkpoint.config import RopeScaling
from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields

_SUPPORTED = "default, linear, dynamic, llama3, yarn, longrope"


@dataclass(frozen=True, slots=True)
class Rope:
    """What a configuration says about rotation; `share` of each head is rotated, its first dimensions."""

    theta: float
    scaling: RopeScaling
    share: float


def read_rope(raw: Mapping[str, Any], row: Architecture, path: Path, max_positions: int) -> Rope:
    """Return the rotation that config.json (`raw`, from `path`) asks for; `CheckpointError` names what is unknown."""
    top = Fields(raw, str(path))
    # transformers 5 writes rope_parameters (theta inside), earlier versions rope_scaling, the earliest with key "type".
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"{path}: rope_scaling must be an object, not {rope!r}")
    nested = next((key for key, value in rope.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise CheckpointError(f"{path}: a rotation of its own for each layer type ({nested}) is not supported")
    fields = Fields(rope, str(path))
    share = fields.number("partial_rotary_factor", top.number("partial_rotary_factor", 1.0))
    if share > 1 or (share < 1 and not row.partly_rotated):
        raise CheckpointError(f"{path}: partial_rotary_factor {share} is not supported")
    theta = fields.number("rope_theta", top.number("rope_theta", row.rope_theta))
    return Rope(theta, _scaling(fields, top, row, max_positions), share)


def _scaling(rope: Fields, top: Fields, row: Architecture, max_positions: int) -> RopeScaling:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "dynamic":
        return RopeScaling("dynamic", rope.number("factor"), original_max_position_embeddings=max_positions)
    # Beside the scaling it goes first, and an architecture that was trained no further ignores what is inside.
    inside = row.trained_positions or rope.whole("original_max_position_embeddings", max_positions, least=2)
    trained = top.whole("original_max_position_embeddings", inside, least=2)
    if kind in row.longrope_names:
        return _longrope(rope, trained, max_positions)
    if kind == "yarn":
        return _yarn(rope, trained)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise CheckpointError(f"{rope.source}: high_freq_factor {high} must be more than low_freq_factor {low}")
        return RopeScaling("llama3", rope.number("factor"), low, high, trained)
    raise CheckpointError(f"{rope.source}: rope type {kind} is not supported; supported are {_SUPPORTED}")


def _yarn(rope: Fields, trained: int) -> RopeScaling:
    """https://arxiv.org/abs/2309.00071, section 3.4 for the attention factor, if the files have no other."""
    factor = rope.number("factor")

    def temperature(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = temperature(1.0)
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        attention = temperature(rope.number("mscale")) / temperature(rope.number("mscale_all_dim"))
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=trained,
        attention_factor=rope.number("attention_factor", attention),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _longrope(rope: Fields, trained: int, max_positions: int) -> RopeScaling:
    """https://arxiv.org/abs/2402.13753, equation 5 for the attention factor, if the files have no other."""
    factor = rope.number("factor", max_positions / trained)
    attention = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return RopeScaling(
        "longrope",
        factor,
        original_max_position_embeddings=trained,
        divisors=rope.numbers("short_factor"),
        long_divisors=rope.numbers("long_factor"),
        attention_factor=rope.number("attention_factor", attention),
    )
