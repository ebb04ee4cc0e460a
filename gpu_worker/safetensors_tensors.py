"""Parameters out of a folder's safetensors files: each byte is read once, in the order in which it lies on disk.

The headers have been read before (checkpoint/safetensors_index.py), so a file is only bytes at known places. Mapping it
into memory costs a page fault every 4 KiB, which took twice as long as reading straight into the parameters.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from io import FileIO
from itertools import groupby

import torch
from torch import Tensor

from checkpoint import CheckpointError, StoredTensor

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""What the format calls them; nothing else is read."""

_PIECE = 2**24
"""Bytes that are read at a time where they can't be read into the parameter itself."""


def check_dtype(name: str, stored: StoredTensor) -> None:
    """Raise `CheckpointError` if the tensor `name` is stored in a dtype that is not read."""
    if stored.dtype not in DTYPES:
        raise CheckpointError(
            f"{stored.file}: tensor {name} has unsupported dtype {stored.dtype}; supported are {', '.join(DTYPES)}"
        )


def read_safetensors(
    index: Mapping[str, StoredTensor], views: Mapping[str, Tensor], filled: Callable[[str], None]
) -> None:
    """Fill each of `views` with the tensor of its name, converted to its dtype and on its device.

    Names, shapes and dtypes must have been compared. `filled` is called with each name when it is done. Raises
    `CheckpointError` for a file that cannot be read to its end.
    """
    reader = _Reader(next(iter(views.values())).device)
    ordered = sorted(views, key=lambda name: (index[name].file, index[name].start))
    for path, names in groupby(ordered, key=lambda name: index[name].file):
        try:
            with FileIO(path) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for name in names:
                    file.seek(index[name].start)
                    reader.fill(file, views[name], DTYPES[index[name].dtype])
                    filled(name)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        except EOFError:
            raise CheckpointError(f"{path}: ends in the midst of a tensor; it was cut while it was read") from None


class _Reader:
    """Reads from a file into tensors, through one buffer where there must be one."""

    def __init__(self, device: torch.device) -> None:
        # From pinned memory a copy to the GPU runs at the speed of the bus.
        self._piece = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def fill(self, file: FileIO, view: Tensor, stored: torch.dtype) -> None:
        """Fill the contiguous `view` with values of dtype `stored` from where `file` stands."""
        flat = view.view(-1)
        if flat.dtype == stored and flat.device.type == "cpu":
            _read(file, flat)
            return
        most = _PIECE // stored.itemsize
        for begin in range(0, len(flat), most):
            part = flat[begin : begin + most]
            values = self._piece[: len(part) * stored.itemsize].view(stored)
            _read(file, values)
            part.copy_(values)


def _read(file: FileIO, values: Tensor) -> None:
    # By address: NumPy would hold on to the memory, and who takes the weights over could not give it back.
    left = memoryview((ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())).cast("B")
    while len(left):
        count = file.readinto(left)
        if not count:
            raise EOFError
        left = left[count:]
