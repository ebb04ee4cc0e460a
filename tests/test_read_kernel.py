"""The kernel that reads as fast as memory goes reads everything. Without a GPU it runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("size", [8192, 10_000])
def test_every_element_is_read_once(size: int) -> None:
    from bench.read_kernel import sum_parts

    source = torch.arange(size, dtype=torch.float32, device=DEVICE).fmod_(17)
    sums = torch.full((-(-size // 4096),), torch.nan, device=DEVICE)
    sum_parts(source, sums, 4096, 4)
    assert sums.tolist() == [float(part.sum()) for part in source.split(4096)]


def test_no_way_of_reading_leaves_anything_out() -> None:
    from bench.read_kernel import SHAPES, ways_to_sum

    source = torch.ones(20_000, device=DEVICE)
    ways = ways_to_sum(source)
    assert len(ways) == len(SHAPES)
    for way in ways:
        way()
        assert float(way.args[1].sum()) == 20_000  # type: ignore[attr-defined]
