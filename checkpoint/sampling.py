"""What a model's makers say it should be sampled with, where a request does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoint.default_model import default_model_path
from checkpoint.errors import CheckpointError
from checkpoint.small_file import parse_json, read_small_file


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Off is top_k 0, top_p 1, min_p 0, repetition_penalty 1; temperature 0 is greedy, 1 the model's distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


_RANGES = {
    "temperature": (0.0, 1e6),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}

_DEFAULT_MODEL = SamplingDefaults(temperature=0.2, top_p=0.9)
"""What the card of SmolLM2-135M-Instruct samples with; its GGUF file has no place for that."""


_NOT_HONOURED = {
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_h": None,
    "penalty_alpha": None,
    "num_beams": 1,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "max_new_tokens": None,
}
"""What generation_config.json may ask for beside, with the value that asks for nothing."""


def sampling_defaults(
    path: Path, override: str | None = None, *, read: bool = True, tell: Callable[[str], None] = lambda _: None
) -> SamplingDefaults:
    """Return what a model that `locate` found is sampled with where a request does not say.

    That is what generation_config.json says, unless `read` is False, and plain sampling where it says nothing; entries
    that make no sense are passed over: they are the makers' mistake, and no reason not to serve. `tell` gets one line
    about those that are not honoured. `override` is a JSON object with names as in that file, and goes before it; what
    makes no sense there raises `CheckpointError`.
    """
    defaults = _of_makers(path, tell) if read else SamplingDefaults()
    return defaults if override is None else overridden(defaults, override)


def _of_makers(path: Path, tell: Callable[[str], None]) -> SamplingDefaults:
    if path == default_model_path():
        return _DEFAULT_MODEL
    try:
        said: Any = parse_json(read_small_file(path / "generation_config.json"))
    except (OSError, ValueError, RecursionError):
        return SamplingDefaults()
    if not isinstance(said, dict):
        return SamplingDefaults()
    ignored = [f"{key} {said[key]!r}" for key, off in _NOT_HONOURED.items() if said.get(key) not in (None, off, [], {})]
    if ignored:
        tell(f"generation_config.json asks for what is not honoured: {', '.join(ignored)}"[:500])
    found = {name: value for name in _RANGES if (value := _sensible(name, said.get(name))) is not None}
    if said.get("do_sample") is False:
        found["temperature"] = 0.0
    return replace(SamplingDefaults(), **found)


def overridden(defaults: SamplingDefaults, override: str) -> SamplingDefaults:
    """Return what --override-generation-config makes of `defaults`; raises `CheckpointError`."""
    option = "--override-generation-config"
    try:
        said: Any = parse_json(override)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{option}: not JSON: {error}") from error
    if not isinstance(said, dict):
        raise CheckpointError(f'{option}: must be a JSON object, such as {{"temperature": 0.5}}')
    found = {}
    for name, value in said.items():
        if name not in _RANGES:
            raise CheckpointError(f"{option}: {name} cannot be set; what can is {', '.join(_RANGES)}")
        sensible = _sensible(name, value)
        if sensible is None:
            low, high = _RANGES[name]
            raise CheckpointError(f"{option}: {name} must be a number from {low:g} to {high:g}, not {value!r}")
        found[name] = sensible
    return replace(defaults, **found)


def _sensible(name: str, value: Any) -> Any:
    """Return a setting as `SamplingDefaults` has it, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name == "top_k":
        if value != value // 1:
            return None
        value = max(int(value), 0) if value >= -1 else value  # -1 is off, too
    low, high = _RANGES[name]
    return value if low <= value <= high else None
