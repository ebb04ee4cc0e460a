"""What a model's makers say it should be sampled with, where a request does not say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.default_model import default_model_path


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Off is top_k 0, top_p 1, min_p 0; temperature 0 is greedy, 1 the model's own distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


_DEFAULT_MODEL = SamplingDefaults(temperature=0.2, top_p=0.9)
"""What the card of SmolLM2-135M-Instruct samples with; its GGUF file has no place for that."""


def sampling_defaults(path: Path) -> SamplingDefaults:
    """Return what generation_config.json of a model that `locate` found says, plain sampling where it says nothing.

    Entries that make no sense are passed over: they are the makers' mistake, and no reason not to serve.
    """
    if path == default_model_path():
        return _DEFAULT_MODEL
    try:
        said: Any = json.loads((path / "generation_config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return SamplingDefaults()
    if not isinstance(said, dict):
        return SamplingDefaults()
    plain = SamplingDefaults()
    return SamplingDefaults(
        temperature=0.0 if said.get("do_sample") is False else _number(said, "temperature", plain.temperature, 1e6),
        top_k=int(_number(said, "top_k", plain.top_k, 2**31 - 1)),
        top_p=_number(said, "top_p", plain.top_p, 1.0),
        min_p=_number(said, "min_p", plain.min_p, 1.0),
    )


def _number(said: dict[str, Any], name: str, default: float, most: float) -> float:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return value if 0 <= value <= most else default
