"""What requests ask of their logits before anything is drawn: penalties, biases, bans, and no end before its time.

What is known of tokens lies on the device, in rows of a pool that only those slots have whose logits are adjusted: the
scheduler notes it when a request gets its slot, and from then on the sampler counts what it draws. So a step may build
on a token that no host knows yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.messages import Note

COUNTED = tuple(note for note in Note if note < Note.RECENT)
"""What is noted of single tokens; the others are for `BadWords`."""


@dataclass(frozen=True, slots=True)
class StagedAdjustments:
    """A plan's new adjustments on the device, int32: n slots begin with them, m notes in the order of their kinds."""

    row: Tensor  # [n]: those of the pool
    penalty: Tensor  # [3 n]: the bits of floats
    free_from: Tensor  # [n]
    limited: Tensor  # [n]: 1 where only what is noted as allowed may come
    note_row: Tensor  # [m]
    note_token: Tensor  # [m]
    bias: Tensor  # the bits of a float for each note of a bias
    kinds: tuple[int, ...]  # how many notes there are of each kind; the host's


@dataclass(frozen=True, slots=True)
class AdjustedSamples:
    """Which samples of a step are adjusted, int32 [A] each: their places among the step's samples, their rows."""

    at: Tensor
    row: Tensor
    worded: bool  # whether any of them has bad words of several tokens


@dataclass(frozen=True, slots=True)
class _Pool:
    """A row each: what is known of tokens, by id, and what is to be done about it."""

    count: Tensor  # int32 [rows, V]: how often the output has it
    seen: Tensor  # bool: in the prompt
    end: Tensor  # bool
    bias: Tensor  # float32: added; -inf for what may not come
    penalty: Tensor  # float32 [rows, 3]: repetition, presence, frequency
    free_from: Tensor  # int64 [rows]


class Adjustments:
    """The pool, and what is done with it. All methods enqueue on the current stream, in program order."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        """Begin without rows."""
        self._vocabulary, self._device = vocabulary, device
        self._pool = self._new_pool(0)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._pool.free_from)

    @torch.inference_mode()
    def begin(self, staged: StagedAdjustments, rows: int) -> None:
        """Set rows of the pool, which is made larger if it has fewer than `rows`."""
        if rows > self.rows:
            self._grow(1 << (rows - 1).bit_length())
        pool, row = self._pool, staged.row.long()
        nothing = torch.zeros(1, dtype=torch.float32, device=self._device)
        pool.count.index_fill_(0, row, 0)
        pool.seen.index_fill_(0, row, False)
        pool.end.index_fill_(0, row, False)
        pool.bias[row] = torch.where(staged.limited > 0, -torch.inf, nothing)[:, None]
        pool.penalty[row] = staged.penalty.view(torch.float32).view(-1, 3)
        pool.free_from[row] = staged.free_from.long()
        place = staged.note_row.long() * self._vocabulary + staged.note_token.long()
        placed = dict(zip(COUNTED, place.split(staged.kinds), strict=True))
        pool.seen.view(-1).index_fill_(0, placed[Note.PROMPT], True)
        pool.count.view(-1).index_add_(0, placed[Note.OUTPUT], torch.ones_like(placed[Note.OUTPUT], dtype=torch.int32))
        pool.end.view(-1).index_fill_(0, placed[Note.END], True)
        pool.bias.view(-1).index_fill_(0, placed[Note.ALLOWED], 0.0)
        pool.bias.view(-1).index_add_(0, placed[Note.BIAS], staged.bias.view(torch.float32))
        pool.bias.view(-1).index_fill_(0, placed[Note.BANNED], -torch.inf)

    @torch.inference_mode()
    def adjusted(self, logits: Tensor, row: Tensor, positions: Tensor) -> Tensor:
        """Return float32 [A, V]: `logits` as they are to be sampled from at int64 `positions` [A], by int64 `row` [A].

        Biases are added first; the repetition penalty divides what is above 0 and multiplies what is below, of tokens
        in prompt or output (Keskar et al.: CTRL, 2019); then the frequency penalty is subtracted for each time that a
        token stands in the output, and the presence penalty once if it does (OpenAI).
        """
        pool = self._pool
        repetition, presence, frequency = (each[:, None] for each in pool.penalty[row].unbind(dim=1))
        count = pool.count[row]
        given = count > 0
        logits = logits + pool.bias[row]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(given | pool.seen[row], repeated, logits)
        logits = logits - frequency * count - presence * given
        early = positions < pool.free_from[row]
        return logits.masked_fill_(pool.end[row] & early[:, None], -torch.inf)

    @torch.inference_mode()
    def count(self, row: Tensor, token: Tensor) -> None:
        """Count a drawn token, int64 [A], for each row, int64 [A]; no row is there twice."""
        place = row * self._vocabulary + token
        self._pool.count.view(-1).index_add_(0, place, torch.ones_like(place, dtype=torch.int32))

    def _grow(self, rows: int) -> None:
        old, new = self._pool, self._new_pool(rows)
        for name in _Pool.__dataclass_fields__:
            getattr(new, name)[: self.rows] = getattr(old, name)
        self._pool = new

    def _new_pool(self, rows: int) -> _Pool:
        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((rows, *shape), dtype=dtype, device=self._device)

        return _Pool(
            count=zeros(torch.int32, self._vocabulary),
            seen=zeros(torch.bool, self._vocabulary),
            end=zeros(torch.bool, self._vocabulary),
            bias=zeros(torch.float32, self._vocabulary),
            penalty=zeros(torch.float32, 3),
            free_from=zeros(torch.int64),
        )
