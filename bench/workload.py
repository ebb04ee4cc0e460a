"""What two engines are both given: prompts in tokens, and how many tokens each is to make of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are all there at the beginning; end tokens are ignored, so `output_lengths` are exact."""

    prompts: tuple[tuple[int, ...], ...]
    output_lengths: tuple[int, ...]

    @property
    def output_tokens(self) -> int:
        """How many tokens are made in all."""
        return sum(self.output_lengths)


def uniform_workload(
    requests: int, input_lengths: tuple[int, int], output_lengths: tuple[int, int], vocab_size: int, seed: int
) -> Workload:
    """Return requests with lengths drawn uniformly from the two ranges, both ends included, and any tokens."""
    draw = np.random.default_rng(seed)
    inputs = draw.integers(*input_lengths, requests, endpoint=True).tolist()
    outputs = draw.integers(*output_lengths, requests, endpoint=True).tolist()
    prompts = tuple(tuple(draw.integers(0, vocab_size, length).tolist()) for length in inputs)
    return Workload(prompts, tuple(outputs))
