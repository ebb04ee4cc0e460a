"""Which steps get a CUDA graph. No Triton here, so that it can be tested anywhere."""

from __future__ import annotations

MOST_GRAPH_TOKENS = 2048
"""Steps of more tokens compute for longer than launching their kernels one by one takes."""

_LEAST_STEP, _STEPS_AN_OCTAVE = 32, 4


def decode_sizes(most: int) -> list[int]:
    """Return the batch sizes of decode steps: powers of two up to 8, then steps of 8, then of 16, with `most`."""
    sizes = [1, 2, 4, *range(8, min(most, 64), 8), *range(64, most, 16), most]
    return sorted({size for size in sizes if size <= most})


def mixed_sizes(most: int) -> list[int]:
    """Return the numbers of tokens of steps with prompts: 16, multiples of 32, few in an octave, and `most`."""
    sizes, size = [], 16
    while size < most:
        sizes.append(size)
        octave = 1 << size.bit_length() - 1
        size = _LEAST_STEP if size < _LEAST_STEP else size + max(_LEAST_STEP, octave // _STEPS_AN_OCTAVE)
    return [*sizes, most]
