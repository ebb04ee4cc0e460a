"""Which batch sizes get a CUDA graph."""

from __future__ import annotations

import pytest

from gpu_worker.graph_sizes import graph_sizes


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 9, 64, 65, 100, 256, 1000])
def test_every_batch_fits_into_one_that_is_little_larger(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        size = next(size for size in sizes if size >= rows)
        assert size - rows < max(2, min(16, rows)), (rows, size)
