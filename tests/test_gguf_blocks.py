"""Every storage type of GGUF unpacks to what its layout says, and what is no whole number of blocks is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from checkpoint import CheckpointError, GGUFFile
from checkpoint.gguf_file import STORAGE_TYPES
from tests.gguf_blocks import LAYOUTS, q4_k, q6_k, random_blocks, unpacked

ROWS, COLUMNS = 5, 768


def written(path: Path, storage: str, rows: int = ROWS, columns: int = COLUMNS) -> GGUFFile:
    """Return a file with one tensor `x` of random blocks."""
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType[storage]
    writer.add_tensor("x", random_blocks(storage, rows, columns), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def test_every_storage_type_that_is_read_has_its_layout_here() -> None:
    assert {name: (size, values) for name, values, size in STORAGE_TYPES.values()} == {
        name: (size, values) for name, (_, size, values, _) in LAYOUTS.items()
    }
    assert {name: number for number, (name, _, _) in STORAGE_TYPES.items()} == {
        name: gguf.GGMLQuantizationType[name].value for name in LAYOUTS
    }


@pytest.mark.parametrize("storage", LAYOUTS)
def test_blocks_unpack_to_what_their_layout_says(storage: str, tmp_path: Path) -> None:
    file = written(tmp_path / "x.gguf", storage)
    values = file.dequantize("x")
    expected = unpacked(storage, random_blocks(storage, ROWS, COLUMNS))
    assert values.dtype == np.float32
    assert values.shape == (ROWS, COLUMNS)
    assert values.std() > 0
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-9)
    assert file.quantised == (storage not in ("F32", "F16", "BF16"))


def test_a_block_written_by_hand_unpacks_by_hand() -> None:
    # Q4_K: d = 2, dmin = 0.5. Sub-block 0 has scale 3, minimum 5; sub-block 5 has 33 = 0b10_0001 and 18 = 0b01_0010.
    scales = bytearray(12)
    scales[0], scales[4] = 3, 5
    scales[1], scales[5], scales[9] = 0b10 << 6, 0b01 << 6, 0b0010 << 4 | 0b0001
    quants = bytearray(128)
    quants[7] = 9  # value 7 of sub-block 0
    quants[2 * 32 + 31] = 4 << 4  # value 31 of sub-block 5
    values = list(q4_k(np.array([2.0, 0.5], "<f2").tobytes() + scales + quants))
    assert (values[7], values[0], values[5 * 32 + 31], values[5 * 32]) == (2 * 3 * 9 - 2.5, -2.5, 2 * 33 * 4 - 9, -9)
    assert set(values[32 : 5 * 32]) == {0}
    # Q6_K: value 200 is at place 8 of quarter 2 of the second half; 45 = 0b10_1101 stands for 13.
    low, high, signs = bytearray(128), bytearray(64), [0] * 16
    low[64 + 8], high[32 + 8], signs[12] = 0b1101 << 4, 0b10 << 4, -7
    block = bytes(low + high) + np.array(signs, np.int8).tobytes() + np.array([0.25], "<f2").tobytes()
    assert list(q6_k(block))[200] == 0.25 * -7 * 13


@pytest.mark.parametrize("storage", ["Q4_K", "Q6_K", "Q8_0", "F16"])
def test_unpacking_holds_one_copy_of_the_tensor(storage: str, tmp_path: Path) -> None:
    file = written(tmp_path / "x.gguf", storage, 4096, 4096)
    file.dequantize("x")[:] = 0  # the library is imported, and the tensor is the caller's own
    tracemalloc.start()
    try:
        values = file.dequantize("x")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.5 * values.nbytes


@pytest.mark.parametrize(("storage", "columns"), [("Q4_0", 16), ("Q8_0", 48), ("Q4_K", 128), ("Q6_K", 384)])
def test_rows_of_half_a_block_are_refused(storage: str, columns: int, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    written(path, storage, columns=768)
    content = path.read_bytes()
    dimensions = (768).to_bytes(8, "little") + ROWS.to_bytes(8, "little")
    assert content.count(dimensions) == 1
    path.write_bytes(content.replace(dimensions, columns.to_bytes(8, "little") + ROWS.to_bytes(8, "little")))
    with pytest.raises(CheckpointError, match=rf"x\.gguf: tensor x has shape \({ROWS}, {columns}\), not whole blocks"):
        GGUFFile(path)
