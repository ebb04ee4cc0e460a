"""Blocks of GGUF's storage types, taken apart value by value as ggml's documentation lays them out.

Nothing of the gguf library is used: this is what it is compared with. The layouts are those of ggml-common.h,
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

Values = Iterator[float]


def f32(block: bytes) -> Values:
    yield from struct.unpack("<f", block)


def f16(block: bytes) -> Values:
    yield from struct.unpack("<e", block)


def bf16(block: bytes) -> Values:
    yield from struct.unpack("<f", b"\0\0" + block)


def nibbles(qs: bytes) -> list[int]:
    """All low halves, then all high ones."""
    return [q & 15 for q in qs] + [q >> 4 for q in qs]


def q4_0(block: bytes) -> Values:
    (d,) = struct.unpack("<e", block[:2])
    return (d * (q - 8) for q in nibbles(block[2:]))


def q4_1(block: bytes) -> Values:
    d, m = struct.unpack("<ee", block[:4])
    return (d * q + m for q in nibbles(block[4:]))


def q5_0(block: bytes) -> Values:
    d, high = struct.unpack("<eI", block[:6])
    return (d * ((q | (high >> i & 1) << 4) - 16) for i, q in enumerate(nibbles(block[6:])))


def q5_1(block: bytes) -> Values:
    d, m, high = struct.unpack("<eeI", block[:8])
    return (d * (q | (high >> i & 1) << 4) + m for i, q in enumerate(nibbles(block[8:])))


def q8_0(block: bytes) -> Values:
    d, *qs = struct.unpack("<e32b", block)
    return (d * q for q in qs)


def q2_k(block: bytes) -> Values:
    scales, qs = block[:16], block[16:80]
    d, dmin = struct.unpack("<ee", block[80:])
    for i in range(256):
        half, group, at = i // 128, i % 128 // 32, i % 32
        scale = scales[i // 16]
        yield d * (scale & 15) * (qs[32 * half + at] >> 2 * group & 3) - dmin * (scale >> 4)


def q3_k(block: bytes) -> Values:
    mask, qs, packed = block[:32], block[32:96], block[96:108]
    (d,) = struct.unpack("<e", block[108:])
    for i in range(256):
        half, group, at, s = i // 128, i % 128 // 32, i % 32, i // 16
        scale = (packed[s % 8] >> 4 * (s // 8) & 15) | (packed[8 + s % 4] >> 2 * (s // 4) & 3) << 4
        q = qs[32 * half + at] >> 2 * group & 3
        yield d * (scale - 32) * (q if mask[at] >> (4 * half + group) & 1 else q - 4)


def scale_and_min(packed: bytes, j: int) -> tuple[int, int]:
    """Six bits each: those of the later four sub-blocks have their upper two with the earlier four."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def q4_k(block: bytes) -> Values:
    d, dmin = struct.unpack("<ee", block[:4])
    for i in range(256):
        scale, least = scale_and_min(block[4:16], i // 32)
        yield d * scale * (block[16 + 32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2) & 15) - dmin * least


def q5_k(block: bytes) -> Values:
    d, dmin = struct.unpack("<ee", block[:4])
    high, qs = block[16:48], block[48:]
    for i in range(256):
        scale, least = scale_and_min(block[4:16], i // 32)
        q = (qs[32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2) & 15) | (high[i % 32] >> i // 32 & 1) << 4
        yield d * scale * q - dmin * least


def q6_k(block: bytes) -> Values:
    low, high, scales = block[:128], block[128:192], struct.unpack("<16b", block[192:208])
    (d,) = struct.unpack("<e", block[208:])
    for i in range(256):
        half, quarter, at = i // 128, i % 128 // 32, i % 32
        q = low[64 * half + 32 * (quarter % 2) + at] >> 4 * (quarter // 2) & 15
        q |= (high[32 * half + at] >> 2 * quarter & 3) << 4
        yield d * scales[i // 16] * (q - 32)


def iq4_nl(block: bytes) -> Values:
    (d,) = struct.unpack("<e", block[:2])
    return (d * IQ4_VALUES[q] for q in nibbles(block[2:]))


def iq4_xs(block: bytes) -> Values:
    d, high = struct.unpack("<eH", block[:4])
    for j in range(8):
        scale = (block[4 + j // 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4
        yield from (d * (scale - 32) * IQ4_VALUES[q] for q in nibbles(block[8 + 16 * j : 24 + 16 * j]))


# How a type is taken apart, the bytes and values of a block, and where in it float16 scales lie.
LAYOUTS: dict[str, tuple[Callable[[bytes], Values], int, int, tuple[int, ...]]] = {
    "F32": (f32, 4, 1, ()),
    "F16": (f16, 2, 1, (0,)),
    "BF16": (bf16, 2, 1, ()),
    "Q4_0": (q4_0, 18, 32, (0,)),
    "Q4_1": (q4_1, 20, 32, (0, 2)),
    "Q5_0": (q5_0, 22, 32, (0,)),
    "Q5_1": (q5_1, 24, 32, (0, 2)),
    "Q8_0": (q8_0, 34, 32, (0,)),
    "Q2_K": (q2_k, 84, 256, (80, 82)),
    "Q3_K": (q3_k, 110, 256, (108,)),
    "Q4_K": (q4_k, 144, 256, (0, 2)),
    "Q5_K": (q5_k, 176, 256, (0, 2)),
    "Q6_K": (q6_k, 210, 256, (208,)),
    "IQ4_NL": (iq4_nl, 18, 32, (0,)),
    "IQ4_XS": (iq4_xs, 136, 256, (0,)),
}


def random_blocks(storage: str, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return blocks of random bits with small scales: uint8 [rows, bytes a row]."""
    _, size, values, scales = LAYOUTS[storage]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows * columns // values, size), np.uint8)
    if storage in ("F32", "BF16"):  # any bits could be a NaN
        numbers = random.normal(size=(len(blocks), 1)).astype("<f4").view(np.uint8)
        blocks = np.ascontiguousarray(numbers[:, -size:])
    for at in scales:
        blocks[:, at : at + 2] = random.uniform(-0.01, 0.01, (len(blocks), 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def unpacked(storage: str, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return what `packed` [..., bytes a row] holds: float32 [..., columns]."""
    take_apart, size, _, _ = LAYOUTS[storage]
    data = packed.tobytes()
    blocks = (take_apart(data[at : at + size]) for at in range(0, len(data), size))
    return np.fromiter(chain.from_iterable(blocks), np.float32).reshape(*packed.shape[:-1], -1)
