"""One GGUF file: its metadata as plain Python values, its tensors as NumPy arrays.

The header is parsed here, with `struct` over a memory map: a vocabulary of 49,152 tokens and as many merges takes some
tens of milliseconds, where building the library's field objects takes seconds, and every process that needs the file
(tokenizer, configuration, weights) pays it. Turning quantised blocks into floats is left to the `gguf` library, which
is imported only then. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoint.errors import CheckpointError
from checkpoint.unreadable import refuse_lfs_pointer

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# ggml's number of a storage type -> (name, values in a block, bytes of a block). Only what can be turned into floats.
STORAGE_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}

_VALUES_AT_A_TIME = 2**17


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies. `shape` is in row-major order (the file has it reversed); `start` is a byte of the file."""

    name: str
    shape: tuple[int, ...]
    storage: int
    start: int

    @property
    def storage_name(self) -> str:
        """ggml's name of the storage type, such as Q4_1."""
        return STORAGE_TYPES[self.storage][0]

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor takes in the file."""
        _, values, size = STORAGE_TYPES[self.storage]
        count = 1
        for n in self.shape:
            count *= n
        return count // values * size


class GGUFFile:
    """An open GGUF file.

    `metadata` maps keys to int, float, bool, str or a list of these; `tensors` maps names to `GGUFTensor`. Opening
    reads the header alone; tensor bytes are mapped and read when asked for. Raises `CheckpointError` for a file that is
    no GGUF, cut short, of an unknown version or with tensors stored in a way that cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                # Mapped, not read: the weights of this very file may be larger than memory.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"{self.path}: cannot be read as GGUF: {error}") from error
        header = _Header(self._map, self.path)
        try:
            self.metadata, self.tensors = header.parse()
        except (struct.error, IndexError) as error:
            raise CheckpointError(f"{self.path}: GGUF header ends too early; is the file complete?") from error
        except RecursionError as error:
            raise CheckpointError(f"{self.path}: GGUF header holds lists inside of lists without end") from error

    @property
    def quantised(self) -> bool:
        """Whether some tensors are stored in blocks of small integers, and not as floats."""
        return any(STORAGE_TYPES[tensor.storage][1] > 1 for tensor in self.tensors.values())

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of a tensor: uint8 [rows, bytes a row], read-only and still on disk until touched."""
        tensor = self._find(name)
        rows = int(np.prod(tensor.shape[:-1]))
        return np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.start).reshape(rows, -1)

    def dequantize(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as float32 in its row-major shape, in memory of its own; there is no second copy of it."""
        import gguf  # 0.2 s, which a file whose tensors nobody reads spares

        tensor, raw = self._find(name), self.raw(name).reshape(-1)
        _, per_block, size = STORAGE_TYPES[tensor.storage]
        kind = gguf.GGMLQuantizationType(tensor.storage)
        page = tensor.start - tensor.start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, tensor.start + tensor.nbytes - page)
        values = np.empty(len(raw) // size * per_block, np.float32)
        # Blocks know nothing of rows. In pieces that fit the processor's cache the library is three times as fast as
        # over the rows of a small model, and what it holds beside the result is small.
        blocks = _VALUES_AT_A_TIME // per_block
        for begin in range(0, len(raw) // size, blocks):
            piece = raw[begin * size : (begin + blocks) * size].reshape(1, -1)
            values[begin * per_block : (begin + blocks) * per_block] = gguf.quants.dequantize(piece, kind)[0]
        return values.reshape(tensor.shape)

    def _find(self, name: str) -> GGUFTensor:
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        return self.tensors[name]


class _Header:
    """A cursor over the header's bytes."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def parse(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        refuse_lfs_pointer(self.path, self.data[:32])
        if self.data[:4] != _MAGIC:
            raise CheckpointError(f"{self.path}: not a GGUF file")
        self.at = 4
        version = self.u32()
        if version not in (2, 3):
            hint = " (big-endian files are not supported)" if version & 0xFFFF == 0 else ""
            raise CheckpointError(f"{self.path}: GGUF version {version} is not supported{hint}")
        tensor_count, key_count = self.u64(), self.u64()
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self.string()
            metadata[key] = self.value(self.u32())
        infos = [(self.string(), self.shape(), self.u32(), self.u64()) for _ in range(tensor_count)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align <= 0:
            raise CheckpointError(f"{self.path}: general.alignment is {align}")
        begin = -(-self.at // align) * align
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, storage, offset in infos:
            if name in tensors:
                raise CheckpointError(f"{self.path}: tensor {name} occurs twice")
            tensors[name] = self.checked(GGUFTensor(name, shape, storage, begin + offset))
        return metadata, tensors

    def checked(self, tensor: GGUFTensor) -> GGUFTensor:
        if tensor.storage not in STORAGE_TYPES:
            known = ", ".join(name for name, _, _ in STORAGE_TYPES.values())
            raise CheckpointError(
                f"{self.path}: tensor {tensor.name} is stored as ggml type {tensor.storage}; supported are {known}"
            )
        if not all(tensor.shape or (0,)) or tensor.shape[-1] % STORAGE_TYPES[tensor.storage][1]:
            raise CheckpointError(f"{self.path}: tensor {tensor.name} has shape {tensor.shape}, not whole blocks")
        if tensor.start + tensor.nbytes > len(self.data):
            raise CheckpointError(f"{self.path}: tensor {tensor.name} lies beyond the end; is the file complete?")
        return tensor

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def shape(self) -> tuple[int, ...]:
        dims: tuple[int, ...] = self.many("Q", self.u32())
        return dims[::-1]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        # The loop over a whole vocabulary: locals only.
        data, at, size, unpack, out = self.data, self.at, len(self.data), _U64.unpack_from, []
        for _ in range(count):
            begin = at + 8
            at = begin + unpack(data, at)[0]
            if at > size:  # before slicing, which takes no number beyond 63 bits
                raise IndexError
            out.append(data[begin:at])
        self.at = at
        try:
            return [text.decode() for text in out]
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: GGUF header holds a string that is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.u32(), self.u64()
            if item == _STRING:
                return self.strings(count)
            if item == _ARRAY:
                return [self.value(_ARRAY) for _ in range(count)]
            return list(self.many(self.code(item), count))
        return self.many(self.code(kind), 1)[0]

    def code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: GGUF value type {kind} is unknown")
        return _SCALARS[kind]

    def many(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize("<" + code)
        if self.at + size * count > len(self.data):
            raise IndexError
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += size * count
        return values
