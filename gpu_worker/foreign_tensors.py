"""What transformers would take for weights, or leave lying, without a word: it casts whatever it finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch.nn import ModuleList
from transformers import PreTrainedModel

from checkpoint import CheckpointError, StoredTensor
from checkpoint.safetensors_index import SINGLE
from gpu_worker.safetensors_tensors import check_dtype


def check_stored(index: Mapping[str, StoredTensor], path: Path) -> None:
    """Raise `CheckpointError` if a tensor in the files is stored in a dtype that can't be a parameter's as it is.

    Cast to a float, a quantised matrix would lack its scale. Let through are buffers of which the model makes its own.
    So is a folder (`path`) refused that holds two models: transformers would not read the one of `index`.
    """
    if (path / SINGLE).is_file() and {stored.file.name for stored in index.values()} != {SINGLE}:
        raise CheckpointError(f"{path}: holds {SINGLE} beside the shards of an index; take away one of the two")
    for name, stored in index.items():
        if not _is_buffer(name, stored):
            check_dtype(name, stored)


def check_left_over(
    model: PreTrainedModel, names: Iterable[str], index: Mapping[str, StoredTensor], path: Path
) -> None:
    """Raise `CheckpointError` if a tensor that `model` did not take (one of `names`) belongs to a part that it has.

    Such a part (a layer, an embedding, the head) would be computed without its bias, scale or adapter. What belongs to
    none (one more layer, another head) was trained for other purposes and may be left.
    """
    prefix = f"{model.base_model_prefix}."
    parts = dict(model.named_modules())
    buffers = {name.removeprefix(prefix) for name, stored in index.items() if _is_buffer(name, stored)}
    for name in sorted(names):
        if name.removeprefix(prefix) in buffers:
            continue
        for part in (name, prefix + name):  # as files are written, or as those of a model without its head
            while part not in parts:
                part = part.rpartition(".")[0]
            if part not in ("", model.base_model_prefix) and not isinstance(parts[part], ModuleList):
                raise CheckpointError(f"{path}: tensor {name} is not part of {type(model).__name__}")


def _is_buffer(name: str, stored: StoredTensor) -> bool:
    """Return whether it is what older releases saved beside the parameters: causal masks, positions, frequencies."""
    is_mask = name.endswith(("bias", "mask")) and len(stored.shape) == 4 and stored.shape[:2] == (1, 1)
    return is_mask or name.endswith((".masked_bias", "position_ids", "rotary_emb.inv_freq"))
