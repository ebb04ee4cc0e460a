"""Penalties, biases and bans, on the worker: logits are what the formulas say, and rows are nobody else's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.adjusted_rows import NO_ROW, AdjustedRows
from gpu_worker.adjustments import COUNTED, Adjustments, StagedAdjustments
from protocol.messages import Note

VOCABULARY = 50


def staged(
    row: int,
    *,
    penalty: tuple[float, float, float] = (1.0, 0.0, 0.0),
    free_from: int = 0,
    bias: dict[int, float] | None = None,
    **notes: list[int],
) -> StagedAdjustments:
    """One slot's beginning, as the staging buffer has it; `notes` by the names of their kinds."""
    tokens = {note: notes.get(note.name.lower(), []) for note in COUNTED} | {Note.BIAS: list(bias or {})}
    column = [token for note in COUNTED for token in tokens[note]]
    return StagedAdjustments(
        row=torch.tensor([row], dtype=torch.int32),
        penalty=torch.tensor(penalty, dtype=torch.float32).view(torch.int32),
        free_from=torch.tensor([free_from], dtype=torch.int32),
        limited=torch.tensor([int(bool(tokens[Note.ALLOWED]))], dtype=torch.int32),
        note_row=torch.full((len(column),), row, dtype=torch.int32),
        note_token=torch.tensor(column, dtype=torch.int32),
        bias=torch.tensor(list((bias or {}).values()), dtype=torch.float32).view(torch.int32),
        kinds=tuple(len(tokens[note]) for note in COUNTED),
    )


def by_the_formula(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    penalty: tuple[float, float, float],
    bias: dict[int, float],
) -> list[float]:
    """One row in plain Python, token by token."""
    repetition, presence, frequency = penalty
    adjusted = []
    for token, value in enumerate(logits):
        value += bias.get(token, 0.0)
        if token in prompt or token in output:
            value = value / repetition if value > 0 else value * repetition
        value -= frequency * output.count(token)
        value -= presence if token in output else 0.0
        adjusted.append(value)
    return adjusted


def logits_of(seed: int) -> Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def adjusted(made: Adjustments, logits: Tensor, row: int, position: int = 100) -> list[float]:
    values: list[float] = made.adjusted(logits[None], torch.tensor([row]), torch.tensor([position]))[0].tolist()
    return values


@pytest.mark.parametrize("seed", range(8))
def test_logits_are_what_the_formulas_say_while_tokens_are_counted(seed: int) -> None:
    dice = random.Random(seed)
    penalty = (dice.uniform(0.5, 2.0), dice.uniform(-2, 2), dice.uniform(-2, 2))
    prompt = [dice.randrange(VOCABULARY) for _ in range(20)]
    output = [dice.randrange(VOCABULARY) for _ in range(9)]
    bias = {token: dice.uniform(-5, 5) for token in dice.sample(range(VOCABULARY), 5)}
    made = Adjustments(VOCABULARY, torch.device("cpu"))
    made.begin(staged(2, penalty=penalty, prompt=prompt, output=output, bias=bias), 3)
    for step in range(12):
        logits = logits_of(100 * seed + step)
        expected = by_the_formula(logits.tolist(), prompt, output, penalty, bias)
        assert adjusted(made, logits, 2) == pytest.approx(expected, rel=1e-5, abs=1e-5)
        token = dice.randrange(VOCABULARY)
        made.count(torch.tensor([2]), torch.tensor([token]))
        output.append(token)


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    tokens = [3, 7, 7, 12, 40]
    made = Adjustments(VOCABULARY, torch.device("cpu"))
    made.begin(staged(0, penalty=(1.3, 0.0, 0.0), prompt=tokens[:3], output=tokens[3:]), 1)
    logits = logits_of(5)
    judge = RepetitionPenaltyLogitsProcessor(1.3)
    assert adjusted(made, logits, 0) == judge(torch.tensor([tokens]), logits[None].clone())[0].tolist()


def test_an_end_may_not_come_before_its_position() -> None:
    made = Adjustments(VOCABULARY, torch.device("cpu"))
    made.begin(staged(0, free_from=10, end=[4, 9]), 1)
    logits = logits_of(1)
    early, late = adjusted(made, logits, 0, 9), adjusted(made, logits, 0, 10)
    assert [token for token in range(VOCABULARY) if early[token] == -torch.inf] == [4, 9]
    assert late == logits.tolist()


def test_what_is_not_allowed_or_is_banned_may_not_come_whatever_its_bias() -> None:
    made = Adjustments(VOCABULARY, torch.device("cpu"))
    made.begin(staged(0, allowed=[4, 9, 11], banned=[9, 20], bias={4: 100.0, 9: 100.0, 30: 100.0}), 1)
    logits = logits_of(1)
    values = adjusted(made, logits, 0)
    assert [token for token in range(VOCABULARY) if values[token] > -torch.inf] == [4, 11]
    assert values[4] == pytest.approx(float(logits[4]) + 100)


def test_a_pool_that_grows_keeps_what_is_known_and_a_row_that_begins_again_forgets() -> None:
    made = Adjustments(VOCABULARY, torch.device("cpu"))
    made.begin(staged(0, penalty=(1.0, 2.0, 0.0), output=[5]), 1)
    made.count(torch.tensor([0]), torch.tensor([6]))
    made.begin(staged(4, penalty=(1.0, 0.0, 0.0), banned=[5]), 5)
    assert made.rows >= 5
    nothing = torch.zeros(VOCABULARY)
    assert [token for token, value in enumerate(adjusted(made, nothing, 0)) if value == -2] == [5, 6]
    made.begin(staged(0, end=[1], free_from=0), 5)
    assert adjusted(made, nothing, 0) == nothing.tolist()


def test_rows_have_one_owner_each_and_there_are_no_more_than_were_needed_at_once() -> None:
    dice = random.Random(3)
    rows, most = AdjustedRows(16), 0
    owner: dict[int, int] = {}
    with_words: set[int] = set()
    for _ in range(300):
        slots = np.array(dice.sample(range(16), dice.randint(1, 6)), np.uint32)
        adjusted_slots = np.array([slot for slot in slots.tolist() if dice.random() < 0.3], np.uint32)
        for slot in slots.tolist():
            owner.pop(slot, None)
        worded = adjusted_slots[::2]
        given = rows.begin(slots, adjusted_slots, worded)
        rows.check()
        with_words = with_words - {*slots.tolist()} | {*worded.tolist()}
        assert [rows.any_worded(np.array([slot], np.uint32)) for slot in range(16)] == [
            slot in with_words for slot in range(16)
        ]
        owner |= dict(zip(adjusted_slots.tolist(), given.tolist(), strict=True))
        most = max(most, len(owner))
        assert len(set(owner.values())) == len(owner)
        assert rows.of(np.arange(16, dtype=np.uint32)).tolist() == [owner.get(slot, NO_ROW) for slot in range(16)]
    assert rows.most == most
