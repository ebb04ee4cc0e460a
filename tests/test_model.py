"""The decoder computes what transformers computes, however a request is cut into steps and whoever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from checkpoint import load_config
from gpu_worker.loading import load_weights
from gpu_worker.rope import rope_table
from tests.paged_model import CPU, PagedModel
from tests.tiny_gguf import write_gguf
from tests.tiny_models import VARIANTS, VOCAB, reference_logits, save, tiny_model

# Logits have a spread of about 2: float32 noise is some 1e-5, an error in the arithmetic some 1e-1.
CLOSE = 1e-4


# The types of rotation, and partly rotated heads: "default" is that of the first.
ROPES = ["grouped queries", "another theta", *(name for name in VARIANTS if "rope" in name)]


def assert_near(ours: Tensor, theirs: Tensor, rtol: float = CLOSE, atol: float = CLOSE) -> None:
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def some_tokens(count: int, seed: int = 0) -> list[int]:
    tokens = torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed))
    return [int(token) for token in tokens]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = tiny_model(variant)
    tokens = some_tokens(300)
    (logits,) = PagedModel(save(model, tmp_path), served=len(tokens)).step((0, tokens))
    assert_near(logits, reference_logits(model, tokens))


@pytest.mark.parametrize(
    "variant", ["Mistral with a window", "Ministral", "SmolLM3 with windows", "dynamic rope", "Phi3"]
)
def test_chunks_and_decode_steps_over_any_edge_do_not_change_logits(variant: str, tmp_path: Path) -> None:
    model = tiny_model(variant)
    tokens = some_tokens(150)
    paged = PagedModel(save(model, tmp_path), served=len(tokens))
    pieces, at = [], 0
    for count in [10, 9, 1, 1, 1, 4, 1, 21, 1, 1, 40, 1, 30, *[1] * 29]:
        (piece,) = paged.step((0, tokens[at : at + count]))
        pieces.append(piece)
        at += count
    assert_near(torch.cat(pieces), reference_logits(model, tokens))


def test_what_every_window_has_left_behind_is_not_read(tmp_path: Path) -> None:
    model = tiny_model("Mistral with a window")
    tokens = some_tokens(200)
    paged = PagedModel(save(model, tmp_path))
    paged.step((0, tokens[:150]))
    for position in range(150 - 47):
        block, offset = int(paged.tables[0, position // 16]), position % 16
        for pool in paged.cache.k + paged.cache.v:
            pool[block, offset] = float("nan")
    (decoded,) = paged.step((0, tokens[150:151]))
    (chunk,) = paged.step((0, tokens[151:]))
    assert_near(torch.cat((decoded, chunk)), reference_logits(model, tokens)[150:])


@pytest.mark.parametrize(
    ("variant", "architecture"),
    [
        ("grouped queries", "llama"),
        ("a wide head with biases", "llama"),
        ("tied embeddings", "llama"),
        ("linear rope", "llama"),
        ("llama3 rope", "llama"),
        ("yarn rope", "llama"),
        ("Mistral", "llama"),
        ("Qwen2", "qwen2"),
        ("Qwen3", "qwen3"),
        ("Granite", "granite"),
        ("Granite with biases", "granite"),
        ("Phi3", "phi3"),
        ("Phi3 partly rotated by longrope", "phi3"),
        ("SmolLM3 of four layers", "smollm3"),
    ],
)
def test_logits_of_a_gguf_are_those_of_the_model_that_it_was_made_from(
    variant: str, architecture: str, tmp_path: Path
) -> None:
    model = tiny_model(variant)
    write_gguf(model, tmp_path / "model.gguf", architecture)
    tokens = some_tokens(150)
    (logits,) = PagedModel(tmp_path / "model.gguf", served=len(tokens)).step((0, tokens))
    assert_near(logits, reference_logits(model, tokens))


@pytest.mark.parametrize("chunks", [[40], [1] * 40, [16, 16, 8], [15, 1, 17, 7], [39, 1], [1, 39]])
def test_chunks_do_not_change_logits(chunks: list[int], tmp_path: Path) -> None:
    paged = PagedModel(save(tiny_model("grouped queries"), tmp_path))
    tokens = some_tokens(40)
    (whole,) = paged.step((1, tokens))
    at, pieces = 0, []
    for count in chunks:
        (piece,) = paged.step((0, tokens[at : at + count]))
        pieces.append(piece)
        at += count
    assert_near(torch.cat(pieces), whole)


def test_neighbours_do_not_change_logits(tmp_path: Path) -> None:
    paged = PagedModel(save(tiny_model("grouped queries"), tmp_path))
    long, short, other = some_tokens(300, 1), some_tokens(9, 2), some_tokens(70, 3)
    (alone,) = paged.step((0, short))
    paged.step((1, long[:-1]), (2, other[:-5]))
    crowd = paged.step((1, long[-1:]), (3, short), (2, other[-5:]), (4, other[:1]))
    assert_near(crowd[1], alone)
    (alone_long,) = paged.step((5, long))
    assert_near(crowd[0], alone_long[-1:])


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_any_block_size_gives_the_same_logits(block_size: int, tmp_path: Path) -> None:
    model = tiny_model("grouped queries")
    tokens = some_tokens(67)
    paged = PagedModel(save(model, tmp_path), block_size=block_size)
    paged.step((0, tokens[:50]))
    (last,) = paged.step((0, tokens[50:]))
    assert_near(last, reference_logits(model, tokens)[50:])


def test_logits_are_computed_for_the_wanted_rows_only(tmp_path: Path) -> None:
    paged = PagedModel(save(tiny_model("grouped queries"), tmp_path))
    tokens = torch.tensor(some_tokens(20))
    (every,) = paged.step((0, tokens.tolist()))
    step = paged.attention.prepare(paged.tables[:1], paged.length[:1] * 0, paged.length[:1])
    for wanted in ([19], [3, 19, 3], []):
        at = torch.tensor(wanted, dtype=torch.int64)
        logits = paged.decoder.forward(tokens, torch.arange(20), at, step, paged.cache)
        assert logits.shape == (len(wanted), VOCAB)
        assert logits.dtype == torch.float32
        assert_near(logits, every[at])


def test_padded_rows_write_to_the_reserved_block_only(tmp_path: Path) -> None:
    paged = PagedModel(save(tiny_model("grouped queries"), tmp_path))
    paged.step((0, some_tokens(20)), (1, some_tokens(31)))
    before = torch.stack(paged.cache.k + paged.cache.v)
    (logits, _) = paged.step((0, [3]), (1, [4]), padded=6)
    after = torch.stack(paged.cache.k + paged.cache.v)
    changed = ~torch.isclose(before, after, rtol=0, atol=0, equal_nan=True).flatten(3).all(dim=-1).all(dim=0)
    block, offset = changed.nonzero(as_tuple=True)
    places = set(zip(block.tolist(), offset.tolist(), strict=True))
    assert places == {(0, 0), (int(paged.tables[0, 1]), 4), (int(paged.tables[1, 1]), 15)}
    assert logits.isfinite().all()


@pytest.mark.parametrize("variant", ["grouped queries", "Granite", "Mistral with a window"])
def test_bfloat16_is_near_float32(variant: str, tmp_path: Path) -> None:
    model = tiny_model(variant)
    tokens = some_tokens(100)
    (logits,) = PagedModel(save(model, tmp_path), dtype=torch.bfloat16).step((0, tokens))
    exact = reference_logits(model, tokens)
    theirs = reference_logits(model.to(torch.bfloat16), tokens).float()
    ours, judged = ((x - exact).square().mean().sqrt() for x in (logits, theirs))
    assert ours < 1.5 * judged  # no further from the truth than another bfloat16 computation


def test_activations_beyond_float16_stay_finite(tmp_path: Path) -> None:
    model = tiny_model("grouped queries")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1e6)
    (logits,) = PagedModel(save(model.to(torch.bfloat16), tmp_path), dtype=torch.bfloat16).step((0, some_tokens(20)))
    assert logits.isfinite().all()


@pytest.mark.parametrize("variant", ROPES)
@pytest.mark.parametrize("served", [64, 100_001])
def test_rotary_table_equals_that_of_transformers_at_any_position(variant: str, served: int, tmp_path: Path) -> None:
    model = tiny_model(variant)
    config = load_config(save(model, tmp_path))
    table = rope_table(config, served, CPU)
    places = torch.tensor([0, 1, 63, 64, 127, 128, 1_000, 8_000, 8_191, 100_000])
    places = places[places < served]
    cos, sin = model.model.rotary_emb(torch.zeros(1), places[None])
    pairs = (config.rotary_dim or config.head_dim) // 2
    assert table.shape == (served, 2 * pairs)
    # An ulp of the angle is 8e-3 at 100,000: only the same operations in float32 come this close there.
    assert_near(table[places, :pairs], cos[0, :, :pairs], rtol=0, atol=1e-6)
    assert_near(table[places, pairs:], sin[0, :, :pairs], rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ROPES)
def test_logits_equal_those_of_transformers_at_far_positions(variant: str, tmp_path: Path) -> None:
    model = tiny_model(variant)
    tokens, count = torch.tensor(some_tokens(60)), 60
    for first in (1_000, 8_160, 100_000):
        paged = PagedModel(save(model, tmp_path), served=first + count)
        # Rotated as if far out, while the row begins where its past does.
        step = paged.attention.prepare(paged.tables[:1], np.array([0]), np.array([count]))
        far = torch.arange(first, first + count)
        logits = paged.decoder.forward(tokens, far, torch.arange(count), step, paged.cache)
        with torch.inference_mode():
            expected = model(tokens[None], position_ids=far[None]).logits[0]
        assert_near(logits, expected)


@pytest.mark.parametrize("variant", ["dynamic rope", "Phi3 partly rotated by longrope"])
def test_a_rotation_goes_by_the_served_length_and_not_by_the_reached_one(variant: str, tmp_path: Path) -> None:
    config = load_config(save(tiny_model(variant), tmp_path))
    trained = config.rope_scaling.original_max_position_embeddings
    within, beyond = rope_table(config, trained, CPU), rope_table(config, trained + 1, CPU)
    assert torch.equal(within[: trained // 2], rope_table(config, trained // 2, CPU))
    assert not torch.allclose(within, beyond[:trained], atol=1e-4)


def test_dummy_weights_give_lively_logits(tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    weights: Any = load_weights(folder, load_config(folder), torch.float32, CPU, load_format="dummy")
    (logits,) = PagedModel(folder, weights=weights).step((0, some_tokens(100)))
    assert 0.3 < logits.std() < 3
    assert len(logits.argmax(dim=-1).unique()) > 30
