"""Which tensors a folder's safetensors files hold, from their headers alone: a damaged model shows before it is loaded.

The format (https://github.com/huggingface/safetensors#format): eight bytes of little-endian length, that much JSON,
data.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from checkpoint.errors import CheckpointError
from checkpoint.hf_config import read_json
from checkpoint.unreadable import refuse_lfs_pointer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_LARGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file: where, its shape and its dtype as the format writes it (F32, BF16, …).

    Its `nbytes` bytes begin at byte `start` of the file.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str
    start: int
    nbytes: int


def safetensors_files(folder: Path) -> list[Path]:
    """Return the weight files of `folder`, [] when it has none; `CheckpointError` names a shard that is absent."""
    where = _weight_map(folder)
    if where is None:
        return [folder / SINGLE] if (folder / SINGLE).is_file() else []
    files = [folder / name for name in sorted(set(where.values()))]
    for file in files:
        if not os.path.isfile(file):
            raise CheckpointError(f"{folder / INDEX}: names the shard {file.name!a:.200}, which is missing")
    return files


def read_index(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor in the weight files of `folder` by name.

    Where the index names a file for a tensor, it is taken from there, whatever other shards hold; files that the index
    does not name are nobody's. Raises `CheckpointError` for a shard that is missing or cut short, for a tensor that is
    in two files and the index has not, and for one that the index has and its shard has not.
    """
    where = _weight_map(folder) or {}
    tensors: dict[str, StoredTensor] = {}
    for file in safetensors_files(folder):
        for name, tensor in _read_header(file).items():
            if where.get(name, file.name) != file.name:
                continue
            if name in tensors:
                raise CheckpointError(f"{file}: tensor {name} is in {tensors[name].file.name} as well")
            tensors[name] = tensor
    for name, shard in where.items():
        if name not in tensors:
            raise CheckpointError(f"{folder / shard}: tensor {name} is missing, though the index has it")
    return tensors


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Return the index's file name for each tensor; None if the folder has no index, or one that is left over.

    An index decides, whatever lies beside it. But saving a small model over a large one leaves the large one's index
    behind and removes its shards: where none of them is left, model.safetensors is the model.
    """
    path = folder / INDEX
    if not path.is_file():
        return None
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{path}: weight_map must map tensors to files")
    # Unlike the path's method, the system's takes any name.
    if (folder / SINGLE).is_file() and not any(os.path.isfile(folder / name) for name in set(where.values())):
        return None
    return where


def _read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            refuse_lfs_pointer(path, start + file.read(16))
            file.seek(8)
            text = file.read(length) if 0 < length <= _LARGEST_HEADER else b"null"
        header = json.loads(text, object_pairs_hook=lambda pairs: _each_once(pairs, path))
        size = path.stat().st_size - 8 - length
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: safetensors header cannot be read; is the file complete?") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a safetensors file")
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end - begin)):
                raise ValueError
            wrong = dtype in _FLOATS and end - begin != math.prod(shape) * _FLOATS[dtype]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: header entry of tensor {name} is damaged") from error
        if wrong or end > size:
            raise CheckpointError(f"{path}: tensor {name} is cut short; is the file complete?")
        tensors[name] = StoredTensor(path, shape, dtype, 8 + length + begin, end - begin)
    return tensors


def _each_once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, after in pairwise(sorted(name for name, _ in pairs)) if name == after)
        raise CheckpointError(f"{path}: tensor {twice} is there twice")
    return found
