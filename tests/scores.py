"""What is told of a scored prompt, and what transformers would tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tiny_models import reference_logits

Told = list[tuple[list[tuple[int, float]], int]]
"""Of each token of a prompt but its first: (token, log probability) of itself and of the likeliest; its rank."""


def by_transformers(model: Any, prompt: list[int], most: int) -> Told:
    """What `model` says, in float32, of the tokens of a prompt."""
    told: Told = []
    for token, row in zip(prompt[1:], reference_logits(model, prompt)[:-1].log_softmax(dim=-1), strict=True):
        likeliest = row.topk(most)
        rank = 1 + int(torch.count_nonzero(row > row[token]))
        entries = list(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
        told.append(([(token, float(row[token])), *entries], rank))
    return told


def assert_same_scores(told: Told, expected: Told, within: float = 5e-4) -> None:
    """Assert that two say the same but for rounding, by which those that are as likely may change places."""
    assert len(told) == len(expected)
    for (entries, rank), (others, other_rank) in zip(told, expected, strict=True):
        assert entries[0][0] == others[0][0], "another token's"
        assert [each for _, each in entries] == pytest.approx([each for _, each in others], abs=within)
        assert abs(rank - other_rank) <= 1, "near ties aside, ranks agree"
        assert len({token for token, _ in entries[1:]}) == len(entries) - 1
