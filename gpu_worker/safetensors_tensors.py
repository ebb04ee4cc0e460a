"""The tensors of a folder's safetensors files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from checkpoint import CheckpointError, StoredTensor


def safetensors_tensors(index: Mapping[str, StoredTensor], wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor on the CPU in the file's dtype) for each wanted name, file by file."""
    files: dict[Path, list[str]] = {}
    for name, stored in index.items():
        if name in wanted:
            files.setdefault(stored.file, []).append(name)
    for path, names in files.items():
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
