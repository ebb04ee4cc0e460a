"""Which batch sizes get a CUDA graph. No Triton here, so that it can be tested anywhere."""

from __future__ import annotations


def graph_sizes(most: int) -> list[int]:
    """Return the batch sizes that get a graph: powers of two up to 8, then steps of 8, then of 16, with `most`."""
    sizes = [1, 2, 4, *range(8, min(most, 64), 8), *range(64, most, 16), most]
    return sorted({size for size in sizes if size <= most})
