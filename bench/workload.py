"""What two engines are both given: prompts in tokens, and how many tokens each is to make of them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Submit


def seed_number(text: str) -> int:
    """Return what `--seed` was given; NumPy takes no negative one."""
    if (seed := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {seed}")
    return seed


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


def greedy(request: int, prompt: NDArray[np.uint32], max_tokens: int, *, ignore_eos: bool = True) -> Submit:
    """Return a request for the likeliest tokens, as a scheduler is asked."""
    nothing = np.zeros(0, np.uint32)
    return Submit(
        request=request,
        prompt=prompt,
        output=nothing,
        max_tokens=max_tokens,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=0,
        ignore_eos=ignore_eos,
        stop_token_ids=nothing,
        timeout=0.0,
    )
