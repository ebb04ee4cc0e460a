"""From logits to tokens, on the device, without asking the host.

Every random row takes one number u from its seed and position and reads off the token at which the cumulative
distribution, in token-id order, passes u. The distribution is made of integers (probability relative to the likeliest
token, times 2⁴⁰), so sums are exact: no order of summation, no batch and no device can move a boundary, and a token of
weight zero cannot be drawn. A token less than 2⁻⁴⁰ as likely as the likeliest has weight zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpu_worker.truncation import SELECTION, as_weights, keep_likeliest
from gpu_worker.uniform import uniform
from protocol.messages import RowStatus


@dataclass(frozen=True, slots=True)
class StagedSettings:
    """Columns of a plan on the device, int32 [n] each: floats and halves of seeds by their bits."""

    slot: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed_low: Tensor
    seed_high: Tensor


@dataclass(frozen=True, slots=True)
class Settings:
    """One entry per slot. Off is temperature 0 (greedy), top_k 0, top_p 1, min_p 0."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64
    top_p: Tensor  # float64
    min_p: Tensor  # float32
    seed: Tensor  # int64

    @classmethod
    def off(cls, num_slots: int, device: torch.device) -> Settings:
        """Return those of slots that are sampled greedily."""
        return cls(
            temperature=torch.zeros(num_slots, dtype=torch.float32, device=device),
            top_k=torch.zeros(num_slots, dtype=torch.int64, device=device),
            top_p=torch.ones(num_slots, dtype=torch.float64, device=device),
            min_p=torch.zeros(num_slots, dtype=torch.float32, device=device),
            seed=torch.zeros(num_slots, dtype=torch.int64, device=device),
        )


STATUS_BIT = 32
"""A sampled row leaves the device as one number: its token, and from this bit on its status."""

LOWER_HALF = 2**STATUS_BIT - 1


def packed(token: Tensor, status: Tensor) -> Tensor:
    """Return tokens (int64 [S]) and statuses (uint8 [S]) as one number each, int64 [S]."""
    return token | (status.long() << STATUS_BIT)


def unpacked(sampled: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return tokens and statuses, on the host."""
    return sampled.astype(np.uint32), (sampled >> STATUS_BIT).astype(np.uint8)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return (token int64 [S], status uint8 [S]) for `logits` float32 [S, vocabulary]: the likeliest of each row."""
    likeliest, tokens = logits.max(dim=-1)
    return _with_status(likeliest, tokens)


def _with_status(likeliest: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    usable = likeliest.isfinite()
    return torch.where(usable, tokens, 0), torch.where(usable, RowStatus.OK, RowStatus.NAN).to(torch.uint8)


class Sampler:
    """How each slot is sampled, and the sampling. All methods enqueue on the current stream, in program order."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._device = device
        self.settings = Settings.off(num_slots, device)
        # The host's copy decides which work a step needs, so that no step waits to learn it from the device.
        self._random = np.zeros(num_slots, np.bool_)
        self._depth = np.zeros(num_slots, np.int64)  # how many of the likeliest tokens may be left; 0: no truncation

    def admit(
        self,
        slots: ArrayLike,
        temperature: ArrayLike,
        top_k: ArrayLike,
        top_p: ArrayLike,
        min_p: ArrayLike,
        seed: ArrayLike,
    ) -> None:
        """Set how `slots` are sampled from the next `sample` on; host arrays, one entry per slot.

        temperature ≥ 0, 0 is greedy; top_k ≤ 0 is off, more than the vocabulary keeps all of it; top_p in [0, 1], 0
        keeps one token; min_p in [0, 1]; seed any int64 or uint64. This waits for all that the stream has to do;
        `admit_staged` does not.
        """
        where = np.asarray(slots, np.int64)
        k, p = np.maximum(np.asarray(top_k, np.int64), 0), np.asarray(top_p, np.float64)
        heat = np.asarray(temperature, np.float32)
        self._note(where, heat, k, p)
        place = torch.from_numpy(where).to(self._device)
        for setting, values in (
            (self.settings.temperature, heat),
            (self.settings.top_k, k),
            (self.settings.top_p, p),
            (self.settings.min_p, np.asarray(min_p, np.float32)),
            (self.settings.seed, _as_int64(seed)),
        ):
            # A copy: the caller's array may be a view of a message.
            setting.index_copy_(0, place, torch.tensor(values).to(self._device))

    def admit_staged(
        self,
        slots: NDArray[np.uint32],
        temperature: NDArray[np.float32],
        top_k: NDArray[np.uint32],
        top_p: NDArray[np.float32],
        staged: StagedSettings,
    ) -> None:
        """As `admit`, by what is on the device already; host arrays once more, for what the host decides."""
        self._note(slots.astype(np.int64), temperature, top_k.astype(np.int64), top_p.astype(np.float64))
        place, own = staged.slot.long(), self.settings
        own.temperature[place] = staged.temperature.view(torch.float32)
        own.top_k[place] = staged.top_k.long()
        own.top_p[place] = staged.top_p.view(torch.float32).double()
        own.min_p[place] = staged.min_p.view(torch.float32)
        own.seed[place] = (staged.seed_high.long() << 32) | (staged.seed_low.long() & 0xFFFFFFFF)

    def _note(
        self, slots: NDArray[np.int64], heat: NDArray[np.float32], k: NDArray[np.int64], p: NDArray[np.float64]
    ) -> None:
        self._random[slots] = heat > 0
        self._depth[slots] = np.where(k > 0, k, np.where(p < 1, np.iinfo(np.int64).max, 0))

    def needs_random(self, slots: NDArray[np.integer]) -> bool:
        """Say whether any of these slots is sampled at a temperature."""
        return bool(self._random[slots].any())

    def needs_cut(self, slots: NDArray[np.integer]) -> bool:
        """Say whether top-k or top-p may cut any of these slots that is sampled at a temperature."""
        return bool((self._random[slots] & (self._depth[slots] > 0)).any())

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        positions: Tensor,
        any_random: bool,
        host_slots: NDArray[np.integer] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return (token int64 [S], status uint8 [S]) for `logits` float32 [S, vocabulary].

        `slots` int64 [S]; `positions` int64 [S], where the sampled token will stand; `any_random` False promises that
        every row is greedy. `host_slots` are the slots once more on the host (needed on a GPU only): random rows alone
        are then worked on. Of equal logits the lowest id wins. A row with a NaN, with +inf or without any finite logit
        has status NAN and token 0.
        """
        likeliest, tokens = logits.max(dim=-1)
        if any_random and len(logits):
            on_host = slots.numpy() if host_slots is None and slots.device.type == "cpu" else host_slots
            for rows, depth in self._split(on_host, logits.shape[1]):
                some = slice(None) if rows is None else torch.from_numpy(rows).to(self._device, non_blocking=True)
                drawn = self._draw(logits[some], likeliest[some], slots[some], positions[some], depth)
                tokens[some] = torch.where(self.settings.temperature[slots[some]] > 0, drawn, tokens[some])
        return _with_status(likeliest, tokens)

    def _split(self, slots: NDArray[np.integer] | None, vocabulary: int) -> list[tuple[NDArray[np.int64] | None, int]]:
        """Return groups of (rows, None being all of them; how many of the likeliest tokens may be left, 0 for all)."""
        if slots is None:
            return [(None, vocabulary)]
        random, depth = self._random[slots], np.minimum(self._depth[slots], vocabulary)
        groups = (depth == 0, (depth > 0) & (depth <= SELECTION), depth > SELECTION)
        found = [np.flatnonzero(random & group) for group in groups]
        return [(rows, int(depth[rows].max())) for rows in found if len(rows)]

    def _draw(self, logits: Tensor, likeliest: Tensor, slots: Tensor, positions: Tensor, depth: int) -> Tensor:
        """Return int64 [n]: a token for each row, as if none were greedy; anything for a row with status NAN."""
        settings = self.settings
        # The likeliest token becomes 0 before the division, so that no temperature, however small, overflows.
        scaled = (logits - likeliest[:, None]) / settings.temperature[slots][:, None]
        relative = scaled.exp_()
        weights = as_weights(relative)
        keep = relative >= settings.min_p[slots][:, None]
        if depth:
            keep &= keep_likeliest(relative, weights, depth, settings.top_k[slots], settings.top_p[slots])
        cumulative = weights.mul_(keep).cumsum(dim=-1)
        total = cumulative[:, -1:]
        target = (uniform(settings.seed[slots], positions)[:, None] * total.double()).long()
        target = torch.minimum(target, total - 1)  # u · total may round up to total
        return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)


def _as_int64(seed: ArrayLike) -> NDArray[np.int64]:
    values = np.asarray(seed)
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, casting="same_kind")
