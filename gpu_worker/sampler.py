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
class _Settings:
    """One entry per slot. Off is temperature 0 (greedy), top_k 0, top_p 1, min_p 0."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64
    top_p: Tensor  # float64
    min_p: Tensor  # float32
    seed: Tensor  # int64


class Sampler:
    """How each slot is sampled, and the sampling. All methods enqueue on the current stream, in program order."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._device = device
        self._settings = _Settings(
            temperature=torch.zeros(num_slots, dtype=torch.float32, device=device),
            top_k=torch.zeros(num_slots, dtype=torch.int64, device=device),
            top_p=torch.ones(num_slots, dtype=torch.float64, device=device),
            min_p=torch.zeros(num_slots, dtype=torch.float32, device=device),
            seed=torch.zeros(num_slots, dtype=torch.int64, device=device),
        )
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
        keeps one token; min_p in [0, 1]; seed any int64 or uint64.
        """
        where = np.asarray(slots, np.int64)
        k, p = np.maximum(np.asarray(top_k, np.int64), 0), np.asarray(top_p, np.float64)
        heat = np.asarray(temperature, np.float32)
        self._random[where] = heat > 0
        self._depth[where] = np.where(k > 0, k, np.where(p < 1, np.iinfo(np.int64).max, 0))
        place = torch.from_numpy(where).to(self._device)
        for setting, values in (
            (self._settings.temperature, heat),
            (self._settings.top_k, k),
            (self._settings.top_p, p),
            (self._settings.min_p, np.asarray(min_p, np.float32)),
            (self._settings.seed, _as_int64(seed)),
        ):
            # A copy: the caller's array may be a view of a message.
            setting.index_copy_(0, place, torch.tensor(values).to(self._device))

    def needs_random(self, slots: NDArray[np.integer]) -> bool:
        """Say whether any of these slots is sampled at a temperature."""
        return bool(self._random[slots].any())

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
        usable = likeliest.isfinite()
        if any_random and len(logits):
            on_host = slots.numpy() if host_slots is None and slots.device.type == "cpu" else host_slots
            for rows, depth in self._split(on_host, logits.shape[1]):
                some = slice(None) if rows is None else torch.from_numpy(rows).to(self._device, non_blocking=True)
                drawn = self._draw(logits[some], likeliest[some], slots[some], positions[some], depth)
                tokens[some] = torch.where(self._settings.temperature[slots[some]] > 0, drawn, tokens[some])
        return torch.where(usable, tokens, 0), torch.where(usable, RowStatus.OK, RowStatus.NAN).to(torch.uint8)

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
        settings = self._settings
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
