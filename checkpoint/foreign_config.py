"""What must be known of a model that only transformers has code for, read without it: its folder, not its insides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields
from checkpoint.hf_config import checkpoint_dtype, eos_token_ids, read_json

_MAX_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "max_seq_length",
    "seq_length",
    "n_ctx",
)
"""What families call it; where a file has several, the first one here is the one that its model goes by."""

_OTHER_INPUT = ("vision_config", "audio_config", "speech_config", "image_token_id", "audio_token_id")
_ROPE_BY_LENGTH = ("dynamic", "longrope", "su")
_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """A causal language model outside of the lean decoder's table.

    `architecture` is the name of its class in transformers; `dtype` and `eos_token_ids` are as in `ModelConfig`. How
    many layers it has, and what of, the worker asks transformers.
    """

    architecture: str
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def default_model_len(self) -> int:
        """Positions that are served unless the user asks for another number."""
        return self.max_position_embeddings

    @property
    def longest_model_len(self) -> int:
        """Positions that may be served at most: a position has its own embedding in some of these models."""
        return self.max_position_embeddings


def read_foreign_config(folder: Path, architecture: str) -> ForeignConfig:
    """Return what the files in `folder` say of a model for transformers; `CheckpointError` says what is wrong.

    What can be seen to be no causal language model over keys and values alone is refused here. What only transformers
    can tell, the worker refuses.
    """
    path = folder / "config.json"
    raw = read_json(path)
    check_foreign(raw, architecture, path)
    fields = Fields(raw, str(path))
    longest = next((name for name in _MAX_POSITIONS if raw.get(name) is not None), None)
    if longest is None:
        raise CheckpointError(f"{path}: names no longest sequence; known names are {', '.join(_MAX_POSITIONS)}")
    return ForeignConfig(
        architecture=architecture,
        vocab_size=fields.whole("vocab_size"),
        max_position_embeddings=fields.whole(longest),
        dtype=checkpoint_dtype(raw, path),
        eos_token_ids=eos_token_ids(folder, fields),
    )


def check_foreign(values: Mapping[str, Any], architecture: str, path: Path) -> None:
    """Raise `CheckpointError` if the `values` of a configuration (a file's, or transformers' own) say that it can't be.

    Among them is whatever makes a token depend on who else is in the batch.
    """
    for reason in _reasons_against(values, architecture):
        raise CheckpointError(f"{path}: architecture {architecture} is not supported: {reason}")


def _reasons_against(values: Mapping[str, Any], architecture: str) -> Iterator[str]:
    quantization = values.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        yield f"it is quantised ({method})"
    if values.get("is_encoder_decoder") or values.get("add_cross_attention"):
        yield "it attends to an encoder"
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        yield "it is no language model called …ForCausalLM or …LMHeadModel"
    for key in _OTHER_INPUT:
        if values.get(key) is not None:
            yield f"it takes more than text ({key})"
    if values.get("alibi"):
        yield "its attention is biased by distance (alibi)"
    layers = values.get("layer_types") or []
    for kind in layers if isinstance(layers, list) else [layers]:
        if kind not in _LAYERS:
            yield f"a layer of type {kind} keeps more than keys and values, or attends in a way of its own"
    for key in ("rope_parameters", "rope_scaling"):
        rope = _nested(values, key)
        for one in (rope, *(inner for inner in rope.values() if isinstance(inner, dict))):
            kind = one.get("rope_type", one.get("type"))
            if kind in _ROPE_BY_LENGTH:
                yield f"rope type {kind} goes by the longest sequence of a batch"


def _nested(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}
