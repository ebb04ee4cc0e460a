"""Which tensors a folder's safetensors files hold, from their headers alone: a damaged model shows before it is loaded.

The format (https://github.com/huggingface/safetensors#format): eight bytes of little-endian length, that much JSON,
data.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import CheckpointError
from checkpoint.hf_config import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_LARGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file: where, its shape and its dtype as the format writes it (F32, BF16, …)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def safetensors_files(folder: Path) -> list[Path]:
    """Return the weight files of `folder`, [] when it has none; `CheckpointError` names a shard that is absent."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        return []
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{index}: weight_map must map tensors to files")
    files = [folder / name for name in sorted(set(where.values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{index}: names the shard {file.name}, which is missing")
    return files


def read_index(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor in the weight files of `folder` by name.

    Raises `CheckpointError` for a shard that is missing or cut short, for a tensor that is in two files, and for one
    that the index promises and no shard has.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in safetensors_files(folder):
        for name, tensor in _read_header(file).items():
            if name in tensors:
                raise CheckpointError(f"{file}: tensor {name} is in {tensors[name].file.name} as well")
            tensors[name] = tensor
    if not (folder / SINGLE).is_file():
        promised = read_json(folder / INDEX).get("weight_map", {})
        for name in promised:
            if name not in tensors:
                raise CheckpointError(f"{folder / promised[name]}: tensor {name} is missing, though the index has it")
    return tensors


def _read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length <= _LARGEST_HEADER else None
        size = path.stat().st_size - 8 - length
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: safetensors header cannot be read; is the file complete?") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a safetensors file")
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)):
                raise ValueError
            wrong = dtype in _FLOATS and end - begin != math.prod(shape) * _FLOATS[dtype]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: header entry of tensor {name} is damaged") from error
        if wrong or end > size:
            raise CheckpointError(f"{path}: tensor {name} is cut short; is the file complete?")
        tensors[name] = StoredTensor(path, shape, dtype)
    return tensors
