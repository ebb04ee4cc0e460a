"""Sampling draws from the distribution asked for, and each row's draw depends on its seed and position alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.sampler import Sampler
from gpu_worker.uniform import uniform
from protocol.messages import RowStatus

CPU = torch.device("cpu")
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}


def sampler(*settings: dict[str, Any]) -> Sampler:
    """Return a sampler whose slot i has settings[i], what is not named being off."""
    made = Sampler(len(settings), CPU)
    for slot, chosen in enumerate(settings):
        made.admit([slot], **{name: np.array([value]) for name, value in (OFF | chosen).items()})
    return made


def draw(made: Sampler, logits: Tensor, slots: list[int], positions: list[int]) -> list[int]:
    tokens, status = made.sample(logits, torch.tensor(slots), torch.tensor(positions), any_random=True)
    assert status.tolist() == [RowStatus.OK] * len(slots)
    assert tokens.dtype == torch.int64
    assert status.dtype == torch.uint8
    return tokens.tolist()


def draws(count: int, logits: Tensor, **chosen: Any) -> list[int]:
    """Return `count` draws from one distribution, at positions 0, 1, …"""
    return draw(sampler(chosen), logits.expand(count, -1), [0] * count, list(range(count)))


def exact(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Return the distribution in float64 by the definition, by sorting: temperature, then top-k, top-p, min-p."""
    probabilities = torch.softmax(logits.double() / temperature, dim=0)
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    kept = order[: top_k or len(order)]
    mass, target = 0.0, top_p * float(probabilities[kept].sum())
    chosen: list[int] = []
    for token in kept:
        if mass >= target - 1e-12 and chosen and top_p < 1:
            break
        chosen.append(token)
        mass += float(probabilities[token])
    chosen = [i for i in chosen if float(probabilities[i]) >= min_p * float(probabilities[order[0]])]
    result = torch.zeros_like(probabilities)
    result[chosen] = probabilities[chosen]
    return result / result.sum()


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 7, "top_p": 0.6},
        {"top_k": 9, "top_p": 0.95, "min_p": 0.05, "temperature": 1.4},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(chosen: dict[str, Any]) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 2
    probabilities = exact(logits, **chosen)
    count = 40_000
    seen = torch.bincount(torch.tensor(draws(count, logits, seed=11, **chosen)), minlength=40).double()
    assert seen[probabilities == 0].sum() == 0
    expected = probabilities * count
    likely = expected >= 5
    chi2 = float(((seen - expected) ** 2 / expected)[likely].sum())
    freedom = int(likely.sum()) - 1
    # Five standard deviations above the mean of chi-squared.
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 5


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=30),
    st.integers(-1, 40),
    st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
def test_what_can_be_drawn_is_what_the_definition_leaves(
    values: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    # Integers tie often, and ties are where truncation goes wrong.
    logits = torch.tensor(values, dtype=torch.float32)
    allowed = exact(logits, top_k=max(top_k, 0), top_p=top_p, min_p=min_p) > 0
    seen = set(draws(200, logits, top_k=top_k, top_p=top_p, min_p=min_p))
    assert seen <= set(allowed.nonzero()[:, 0].tolist())


def test_ties_are_cut_by_token_id() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 1.0])
    assert set(draws(300, logits, top_k=3)) == {1, 2, 3}
    assert set(draws(300, logits, top_k=4)) == {1, 2, 3, 4}
    assert set(draws(300, torch.zeros(8), top_p=0.5)) == {0, 1, 2, 3}
    assert draws(3, torch.zeros(8), top_p=0.0) == [0, 0, 0]


def test_top_p_keeps_the_fewest_tokens_that_reach_the_share() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, kept in ((0.4, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4)):
        assert set(draws(400, logits, top_p=top_p)) == set(range(kept))


def test_truncation_is_that_of_transformers() -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    ids: Any = torch.zeros(1, 1, dtype=torch.int64)
    for seed in range(20):
        logits = torch.randn(1, 60, generator=torch.Generator().manual_seed(seed)) * 3
        left = TopPLogitsWarper(0.9)(ids, TopKLogitsWarper(12)(ids, logits.clone() / 1.3))
        left = MinPLogitsWarper(0.03)(ids, left)
        allowed = set(left[0].isfinite().nonzero()[:, 0].tolist())
        seen = set(draws(3000, logits[0], temperature=1.3, top_k=12, top_p=0.9, min_p=0.03, seed=seed))
        assert seen <= allowed
        probability = left[0].softmax(dim=0)
        assert seen >= {i for i in allowed if probability[i] > 0.01}


@pytest.mark.parametrize("top_k", [-1, 0, 10**7, 2**31 - 1])
def test_top_k_off_or_beyond_the_vocabulary_keeps_everything(top_k: int) -> None:
    assert set(draws(500, torch.zeros(10), top_k=top_k)) == set(range(10))


def test_long_selections_and_short_ones_agree() -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * 2
    every = draws(300, logits, seed=5)
    assert draws(300, logits, top_k=5000, seed=5) == every
    assert draws(300, logits, top_p=1.0, min_p=0.0, top_k=4999, seed=5) == every
    short = draws(300, logits, top_k=1000, top_p=0.5, seed=5)
    made = sampler({"top_k": 1000, "top_p": 0.5, "seed": 5}, {"top_k": 1024, "seed": 1}, {"top_k": 4000, "seed": 1})
    mixed = draw(made, logits.expand(302, -1), [0] * 300 + [1, 2], [*range(300), 0, 0])
    assert mixed[:300] == short


@pytest.mark.parametrize("spread", [0.5, 4.0], ids=["flat: the vocabulary is sorted", "peaked: a selection will do"])
def test_top_p_over_a_large_vocabulary(spread: float) -> None:
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(8)) * spread
    for top_p in (0.3, 0.9):
        probabilities = exact(logits, top_p=top_p)
        seen = torch.bincount(torch.tensor(draws(3000, logits, top_p=top_p)), minlength=3000)
        assert seen[probabilities == 0].sum() == 0
        likeliest = probabilities.argsort(descending=True)[: int((probabilities > 0).sum()) // 2]
        share = float(probabilities[likeliest].sum())
        drawn = float(seen[likeliest].sum()) / 3000
        assert abs(drawn - share) <= 5 * math.sqrt(share * (1 - share) / 3000) + 1e-9


def test_greedy_takes_the_likeliest_and_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [-math.inf, -math.inf, -3.0, -3.0], [7.0, 1.0, 7.0, 7.0]])
    made = sampler({"temperature": 0.0})
    for any_random in (False, True):
        tokens, _ = made.sample(logits, torch.zeros(3, dtype=torch.int64), torch.arange(3), any_random)
        assert tokens.tolist() == [1, 2, 0]


def test_rows_with_different_settings_do_not_mix() -> None:
    made = sampler({"top_k": 1, "seed": 1}, {"seed": 2}, {"temperature": 0.0}, {"top_p": 0.01}, {"min_p": 1.0})
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    best = logits.argmax(dim=-1).tolist()
    seen: list[set[int]] = [set() for _ in range(5)]
    for position in range(500):
        for row, token in enumerate(draw(made, logits, [0, 1, 2, 3, 4], [position] * 5)):
            seen[row].add(token)
    assert len(seen[1]) > 5
    for row in (0, 2, 3, 4):
        assert seen[row] == {best[row]}


def test_a_seeded_draw_does_not_depend_on_neighbours_order_or_batch() -> None:
    logits = torch.randn(16, 300, generator=torch.Generator().manual_seed(4))
    mine = {"seed": 42, "temperature": 0.9, "top_k": 50, "top_p": 0.95}
    alone = [draw(sampler(mine), logits[t : t + 1], [0], [100 + t])[0] for t in range(16)]
    others: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 7},
        {"seed": 42, "top_p": 0.5},
        {"min_p": 0.2},
        {"top_k": 200},
    ]
    for place in (0, 3, 5):
        made = sampler(*others[:place], mine, *others[place:])
        crowd = torch.randn(6, 300, generator=torch.Generator().manual_seed(place))
        for t in range(16):
            crowd[place] = logits[t]
            positions = [t] * 6
            positions[place] = 100 + t
            assert draw(made, crowd, [0, 1, 2, 3, 4, 5], positions)[place] == alone[t]
            backwards = draw(made, crowd.flip(0), [5, 4, 3, 2, 1, 0], positions[::-1])
            assert backwards[5 - place] == alone[t]
    every = draw(sampler(mine), logits, [0] * 16, [100 + t for t in range(16)])
    assert every == alone


def test_without_the_hosts_word_every_row_is_worked_on_and_comes_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sampler({"seed": 3, "top_k": 20}, {"temperature": 0.0}, {"seed": 4, "top_p": 0.7}, {"seed": 5})
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(9))
    slots, positions = torch.arange(4), torch.arange(4)
    quick, _ = made.sample(logits, slots, positions, any_random=True, host_slots=np.arange(4))
    everything = made._split(None, logits.shape[1])
    monkeypatch.setattr(made, "_split", lambda *_: everything)
    slow, _ = made.sample(logits, slots, positions, any_random=True)
    assert quick.tolist() == slow.tolist()


@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [math.inf, math.nan], None], ids=str)
@pytest.mark.parametrize("chosen", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_a_row_without_a_usable_logit_says_so_and_its_neighbours_do_not_care(
    bad: list[float] | None, chosen: dict[str, Any]
) -> None:
    made = sampler(chosen | {"seed": 1})
    good = torch.randn(3, 20, generator=torch.Generator().manual_seed(2))
    logits = good.clone()
    if bad is None:
        logits[1] = -math.inf
    else:
        logits[1, 4 : 4 + len(bad)] = torch.tensor(bad)
    slots, positions = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    tokens, status = made.sample(logits, slots, positions, any_random=True)
    assert status.tolist() == [RowStatus.OK, RowStatus.NAN, RowStatus.OK]
    assert tokens[1] == 0
    healthy, _ = made.sample(good, slots, positions, any_random=True)
    assert tokens[[0, 2]].tolist() == healthy[[0, 2]].tolist()


def test_banned_tokens_are_never_drawn() -> None:
    logits = torch.full((50,), -math.inf)
    logits[[7, 8, 30]] = torch.tensor([0.0, 1.0, 0.5])
    assert set(draws(2000, logits)) == {7, 8, 30}
    assert set(draws(2000, logits, top_k=20, top_p=0.999)) == {7, 8, 30}


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.5, 3), (1 - 2.0**-53, 3)])
def test_the_ends_of_the_unit_interval_and_edges_inside_fall_on_tokens_with_weight(
    number: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpu_worker.sampler.uniform", lambda seed, _: torch.full(seed.shape, number, dtype=torch.float64)
    )
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert draws(1, logits) == [token]


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 1e6])
def test_extreme_temperatures_neither_overflow_nor_give_up(temperature: float) -> None:
    logits = torch.tensor([-1e4, 3e4, 2.9e4, -math.inf])
    seen = set(draws(500, logits, temperature=temperature))
    assert seen == ({1} if temperature < 1 else {0, 1, 2})


def test_settings_of_a_slot_are_replaced_whole() -> None:
    made = sampler({"top_k": 1, "seed": 9}, {"seed": 1})
    column = {name: np.array([value]) for name, value in OFF.items()}
    made.admit(np.array([0]), **column)
    logits = torch.zeros(300, 30)
    assert len(set(draw(made, logits, [0] * 300, list(range(300))))) > 20
    assert made.needs_random(np.array([0]))
    made.admit(np.array([0]), **(column | {"temperature": np.array([0.0])}))
    assert not made.needs_random(np.array([0]))
    assert made.needs_random(np.array([0, 1]))


def test_the_callers_columns_are_copied() -> None:
    made = Sampler(2, CPU)
    columns = {name: np.array([value, value]) for name, value in OFF.items()}
    made.admit(np.arange(2), **columns)
    before = draw(made, torch.zeros(1, 1000), [1], [5])
    columns["seed"][:] = 77
    columns["temperature"][:] = 0
    assert draw(made, torch.zeros(1, 1000), [1], [5]) == before


def test_no_work_is_done_for_no_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    tokens, status = sampler({}).sample(torch.zeros(0, 9), nothing, nothing, any_random=True)
    assert tokens.shape == status.shape == (0,)


# ------------------------------------------------------------------------------------------------ the uniform numbers


def splitmix64(state: int) -> int:
    """Return SplitMix64's output function on unbounded Python integers."""
    mask = 2**64 - 1
    z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_uniform_numbers_are_splitmix64(seed: int, position: int) -> None:
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    state = splitmix64((seed + gamma) & mask)
    expected = (splitmix64((state + (position + 1) * gamma) & mask) >> 11) * 2.0**-53
    assert float(uniform(torch.tensor(seed), torch.tensor(position))) == expected


def test_draws_never_change_from_one_version_to_the_next() -> None:
    seeds = torch.tensor([0, 1, 42, -1, 2**63 - 1, -(2**63)])
    known = [
        0.6524484863740322,
        0.36818951565166946,
        0.7347204584623639,
        0.3430236274313533,
        0.8425845230790328,
        0.35978012631979606,
    ]
    assert uniform(seeds, torch.tensor([0, 0, 7, 100, 8191, 1])).tolist() == known
    logits = torch.linspace(0, 3, 1000)
    assert draws(8, logits, seed=42) == [674, 985, 776, 275, 877, 276, 518, 903]


def test_uniform_numbers_look_uniform_along_positions_and_along_seeds() -> None:
    count = 100_000
    along = torch.arange(count)
    for numbers in (uniform(torch.zeros_like(along), along), uniform(along, torch.full_like(along, 17))):
        bins = torch.histc(numbers, 100, 0, 1)
        assert float(((bins - count / 100) ** 2 / (count / 100)).sum()) < 99 + 5 * math.sqrt(198)
        centred = numbers - 0.5
        assert abs(float((centred[1:] * centred[:-1]).mean())) * 12 < 5 / math.sqrt(count)
        assert 0 <= float(numbers.min()) <= float(numbers.max()) < 1


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_seed_may_use_all_64_bits(seed: int) -> None:
    made = Sampler(1, CPU)
    column: dict[str, Any] = {name: np.array([value]) for name, value in OFF.items()}
    made.admit([0], **(column | {"seed": np.array([seed], np.uint64)}))
    signed = Sampler(1, CPU)
    signed.admit([0], **(column | {"seed": np.array([seed], np.uint64).view(np.int64)}))
    logits = torch.zeros(20, 500)
    places = list(range(20))
    assert draw(made, logits, [0] * 20, places) == draw(signed, logits, [0] * 20, places)
