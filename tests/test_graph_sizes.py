"""Which steps get a CUDA graph."""

from __future__ import annotations

import pytest

from gpu_worker.graph_sizes import decode_sizes, mixed_sizes


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 9, 64, 65, 100, 256, 1000])
def test_every_batch_fits_into_one_that_is_little_larger(most: int) -> None:
    sizes = decode_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        size = next(size for size in sizes if size >= rows)
        assert size - rows < max(2, min(16, rows)), (rows, size)


@pytest.mark.parametrize("most", [1, 15, 16, 17, 64, 100, 512, 1000, 2048])
def test_every_step_with_prompts_fits_into_one_that_is_a_quarter_larger_at_most(most: int) -> None:
    sizes = mixed_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for tokens in range(1, most + 1):
        size = next(size for size in sizes if size >= tokens)
        assert size - tokens < max(32, tokens / 4), (tokens, size)


def test_there_are_few_of_them() -> None:
    assert len(mixed_sizes(2048)) <= 32
    assert len(decode_sizes(256)) <= 32
