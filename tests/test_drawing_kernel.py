"""The kernel that draws against the sampler in plain torch: the same tokens, row by row.

Without a GPU it runs in Triton's interpreter.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.sampler import Sampler, greedy, packed

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr("gpu_worker.drawing.AT_A_TIME", 128)
        monkeypatch.setattr("gpu_worker.kept_prefix.GREATEST", 64)  # some rows keep more, and some fewer


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS = [
    OFF,
    OFF | {"temperature": 0.0},
    OFF | {"temperature": 1e-3},
    OFF | {"temperature": 50.0},
    OFF | {"top_k": 1},
    OFF | {"top_k": 3},
    OFF | {"top_k": 10**6},
    OFF | {"top_p": 0.0},
    OFF | {"top_p": 0.3},
    OFF | {"top_p": 0.95},
    OFF | {"top_p": 0.999999},
    OFF | {"min_p": 0.2},
    OFF | {"min_p": 1.0},
    OFF | {"top_k": 5, "top_p": 0.6, "min_p": 0.05, "temperature": 0.7},
    OFF | {"top_k": 40, "top_p": 0.9, "temperature": 1.5},
    OFF | {"top_k": 2, "top_p": 0.9999},
    OFF | {"top_k": 5, "min_p": 0.9},
    OFF | {"top_p": 0.99, "min_p": 0.5},
]


def on_a_gpu(value: object) -> object:
    return pytest.param(value, marks=pytest.mark.gpu)


def both(
    logits: Tensor, settings: list[dict[str, float]], seed: int, divisor: float = 1.0, *, cut: bool = True
) -> tuple[Tensor, Tensor]:
    """Return what the kernel samples and what the sampler does, `packed`."""
    from gpu_worker.drawing import Drawing

    rows = len(settings)
    sampler, own = Sampler(rows + 2, torch.device("cpu")), Sampler(rows + 2, DEVICE)
    slots = np.arange(rows)[::-1] + 1
    columns = [np.array([each[name] for each in settings]) for name in ("temperature", "top_k", "top_p", "min_p")]
    seeds = np.arange(rows) * 7919 + seed
    for each in (sampler, own):
        each.admit(slots, columns[0], columns[1], columns[2], columns[3], seeds)
    slot, position = torch.from_numpy(slots.copy()), torch.arange(rows) * 3 + seed
    exact = logits.cpu().float() / divisor
    expected = packed(*sampler.sample(exact, slot, position, True))
    sampled = packed(*greedy(logits.float() / divisor))
    last_token = torch.zeros(rows + 2, dtype=torch.int64, device=DEVICE)
    before = sampled.clone()
    on_device = slot.int().to(DEVICE), position.int().to(DEVICE)
    drawing = Drawing(rows, logits.shape[1], DEVICE)
    drawing.draw(logits, *on_device, own.settings, sampled, last_token, divisor, cut=cut)
    drawn = torch.tensor([each["temperature"] > 0 for each in settings]) & (expected >> 32 == 0)
    assert torch.equal(sampled.cpu()[~drawn], before.cpu()[~drawn])
    assert torch.equal(last_token.cpu()[slot][drawn], sampled.cpu()[drawn] & 0xFFFFFFFF)
    return sampled.cpu(), expected


@pytest.mark.parametrize("vocabulary", [300, *map(on_a_gpu, [7, 50_000])])
@pytest.mark.parametrize("seed", [0, *map(on_a_gpu, [1, 2, 3])])
def test_every_setting_draws_what_the_sampler_draws(vocabulary: int, seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    logits = 3 * torch.randn((len(SETTINGS), vocabulary), generator=generator, device=DEVICE)
    found, expected = both(logits, SETTINGS, seed)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("vocabulary", [300, *map(on_a_gpu, [7, 50_000])])
def test_where_nothing_is_cut_nobody_looks_for_what_is_kept(monkeypatch: pytest.MonkeyPatch, vocabulary: int) -> None:
    monkeypatch.setattr("gpu_worker.kept_prefix.KeptPrefix.find", None)
    uncut = [each for each in SETTINGS if each["top_k"] == 0 and each["top_p"] == 1]
    generator = torch.Generator(DEVICE).manual_seed(4)
    logits = 3 * torch.randn((len(uncut), vocabulary), generator=generator, device=DEVICE)
    found, expected = both(logits, uncut, 4, cut=False)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("limit", ["top_k", "top_p"])
@pytest.mark.parametrize("fits", [-1, 0, 1])
def test_what_is_kept_is_found_among_the_greatest_or_among_all(
    monkeypatch: pytest.MonkeyPatch, fits: int, limit: str
) -> None:
    from gpu_worker.kept_prefix import KeptPrefix

    monkeypatch.setattr("gpu_worker.kept_prefix.GREATEST", 8)
    first = 8 + fits  # so many have the greatest value; all others are half as likely, and have another exponent
    lengths = torch.tensor([1, first - 1, first, first + 1, 39])
    rows, heat, half = len(lengths), 0.7, 0.5
    logits = torch.full((rows, 40), heat * float(np.log(half)), device=DEVICE)
    for row in logits:
        row[torch.randperm(40, generator=torch.Generator().manual_seed(first))[:first].to(DEVICE)] = 0.0
    top_k = lengths if limit == "top_k" else torch.zeros_like(lengths)
    mass = lengths.clamp(max=first) + half * (lengths - first).clamp(min=0) - half / 2
    top_p = mass.double() / (first + half * (40 - first)) if limit == "top_p" else torch.ones(rows)
    top_p[0] = 0.0 if limit == "top_p" else 1.0  # which keeps one token, too
    sampler, each = Sampler(rows, DEVICE), np.ones(rows)
    sampler.admit(np.arange(rows), heat * each, top_k.numpy(), top_p.numpy(), 0 * each, np.arange(rows))
    prefix = KeptPrefix(rows, 40, 16, DEVICE)
    slots = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    prefix.find(logits, slots, sampler.settings, packed(*greedy(logits)), 1.0)
    assert int(prefix._held.max()) == (first if fits <= 0 else 0), "what does not fit is in the next row's way"
    expected = [(1.0, length) if length <= first else (half, length - first) for length in lengths.tolist()]
    found = zip(prefix.last.view(torch.float32).tolist(), prefix.equals.tolist(), strict=True)
    assert [(round(last, 5), equals) for last, equals in found] == expected


@pytest.mark.parametrize("seed", [0, *map(on_a_gpu, [1, 2])])
def test_of_equal_values_the_lowest_ids_are_kept(seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    logits = torch.randint(-2, 3, (len(SETTINGS), 90), generator=generator, device=DEVICE).float()
    found, expected = both(logits, SETTINGS, seed)
    assert torch.equal(found, expected)


def test_rows_that_are_unusable_keep_their_status_and_masked_tokens_are_not_drawn() -> None:
    logits = torch.zeros((4, 50), device=DEVICE)
    logits[0, 7] = float("nan")
    logits[1, 9] = float("inf")
    logits[2] = float("-inf")
    logits[3, 1:] = float("-inf")
    found, expected = both(logits, [OFF] * 4, 5)
    assert torch.equal(found, expected)
    assert (found >> 32).tolist() == [1, 1, 1, 0]
    assert found[3] == 0


@pytest.mark.parametrize("dtype", [torch.float16, on_a_gpu(torch.bfloat16)])
def test_logits_may_be_of_16_bits_and_are_meant_divided(dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(3)
    logits = (20 * torch.randn((len(SETTINGS), 200), generator=generator, device=DEVICE)).to(dtype)
    found, expected = both(logits, SETTINGS, 1, divisor=8.0)
    assert torch.equal(found, expected)


@pytest.mark.gpu
def test_tokens_come_as_often_as_they_should() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125], device=DEVICE).log().repeat(16, 1)
    counts = torch.zeros(4)
    for seed in range(0, 4000, 400):
        found, _ = both(logits, [OFF | {"top_p": 0.7}] * 16, seed)
        counts += torch.bincount(found, minlength=4)
    assert counts[2:].sum() == 0
    assert abs(counts[0] / counts.sum() - 2 / 3) < 0.12
