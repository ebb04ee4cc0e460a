"""In what the layers of one model of Hugging Face's layout differ: sliding windows, and rotation or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint.architectures import Architecture
from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_unrotated_layers(raw: Mapping[str, Any], row: Architecture, path: Path, layers: int) -> frozenset[int]:
    """Return which of the `layers` layers config.json (`raw`, from `path`) leaves unrotated."""
    if row.unrotated_every is None:
        return frozenset()
    rotated = raw.get("no_rope_layers")  # its ones are layers with rotation, whatever its name
    if rotated is None:
        interval = Fields(raw, str(path)).whole("no_rope_layer_interval", row.unrotated_every)
        return frozenset(range(interval - 1, layers, interval))
    if not isinstance(rotated, list) or len(rotated) < layers or any(entry not in (0, 1) for entry in rotated):
        raise CheckpointError(f"{path}: no_rope_layers must be a list of 0 or 1 for each of {layers} layers")
    return frozenset(layer for layer in range(layers) if not rotated[layer])


def read_layer_windows(
    raw: Mapping[str, Any], row: Architecture, path: Path, layers: int, unrotated: frozenset[int]
) -> tuple[int, ...]:
    """Return the window of each of the `layers` layers, 0 for none; empty if no layer has one."""
    fields = Fields(raw, str(path))
    kinds = _layer_types(raw, path)
    used = row.windows == "all" or fields.flag("use_sliding_window", False)
    has_size = raw.get("sliding_window", row.window) is not None
    window = fields.whole("sliding_window", row.window) if used and has_size else 0
    other = next((kind for kind in kinds if kind != _FULL and (kind != _SLIDING or row.windows == "none")), None)
    if other is not None:
        raise CheckpointError(f"{path}: layer type {other} is not supported")
    if window and row.windows == "none":
        raise CheckpointError(f"{path}: sliding_window {window} is not supported")
    if kinds and len(kinds) != layers:
        raise CheckpointError(f"{path}: layer_types has {len(kinds)} entries for {layers} layers")
    if _SLIDING in kinds and not window:
        raise CheckpointError(f"{path}: layer_types has {_SLIDING}, but no sliding_window is in use")
    if not kinds and window:
        first = fields.whole("max_window_layers", 28, least=0)
        sliding = {"all": range(layers), "upper": range(first, layers), "unrotated": unrotated}[row.windows]
        kinds = [_SLIDING if layer in sliding else _FULL for layer in range(layers)]
    windows = tuple(window if kind == _SLIDING else 0 for kind in kinds)
    return windows if any(windows) else ()


def _layer_types(raw: Mapping[str, Any], path: Path) -> list[Any]:
    kinds = raw.get("layer_types") or []
    if not isinstance(kinds, list):
        raise CheckpointError(f"{path}: layer_types must be a list, not {kinds!r}")
    return kinds
