"""Bad words of several tokens: the last of them may not come where the output ends with the others.

What a slot has said last lies on the device, in the rows in which its tokens are counted (`adjustments.py`): a step may
build on a token that no host knows yet. A row is lines of tokens, filled from the right:

    word 0        ·   ·   ·   a   b   c        c is banned if what was said ends with a, b
    word 1        ·   ·   ·   ·   b   b        b is banned if it ends with b
      ⋮
    said          …   x   y   z   a   b        now c is banned, and so is b
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.messages import MOST_BAD_WORD_TOKENS, MOST_BAD_WORDS, Note

LINES = MOST_BAD_WORDS + 1
WIDTH = MOST_BAD_WORD_TOKENS
_NOTHING = -1
"""Stands where a line has no token: what was said may be anything there, and nothing said is like a token."""


@dataclass(frozen=True, slots=True)
class StagedWords:
    """A plan's new bad words, and what was said before, on the device, int32 [n] each."""

    place: Tensor  # among all places of all rows
    token: Tensor


def word_places(note: NDArray[np.uint8], row: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the place of each note about bad words, int32[n], in a plan's order; `row` [n] says whose each is."""
    index, ends = np.arange(len(note)), note == Note.WORD_END
    ended = np.cumsum(ends) - ends  # words that end before each
    line = ended - ended[_first(row)]
    line[note == Note.RECENT] = LINES - 1
    line += LINES * row
    to_end = _first(line[::-1])[::-1]  # as seen from the last
    place: NDArray[np.int32] = (line * WIDTH + WIDTH - len(note) + index + to_end).astype(np.int32)
    return place


def _first(column: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return for each entry where the run of equal ones begins that it is in."""
    index = np.arange(len(column))
    index[1:][column[1:] == column[:-1]] = 0
    return np.maximum.accumulate(index)


class BadWords:
    """The rows, and what is done with them. All methods enqueue on the current stream, in program order."""

    def __init__(self, device: torch.device) -> None:
        """Begin without rows: there are none before somebody has bad words of several tokens."""
        self._device = device
        self._lines = self._new_lines(0)

    @torch.inference_mode()
    def begin(self, row: Tensor, staged: StagedWords | None, rows: int) -> None:
        """Set rows, int32 [n], some of which have words, if `staged` says so; there are `rows` in all."""
        if staged is None and not len(self._lines):
            return
        if rows > len(self._lines):
            old, self._lines = self._lines, self._new_lines(1 << (rows - 1).bit_length())
            self._lines[: len(old)] = old
        self._lines.index_fill_(0, row.long(), _NOTHING)
        if staged is not None:
            self._lines.view(-1).index_copy_(0, staged.place.long(), staged.token)

    @torch.inference_mode()
    def ban(self, logits: Tensor, row: Tensor) -> None:
        """Set to -inf, in `logits` float32 [A, V], what would end a word of its row, int64 [A]."""
        lines = self._lines[row]
        words, said = lines[:, :-1], lines[:, -1:, 1:]
        before, last = words[..., :-1], words[..., -1]
        banned = ((before == said) | (before == _NOTHING)).all(dim=-1) & (last != _NOTHING)
        # Lines without a word add nothing to token 0.
        logits.scatter_add_(1, last.clamp(min=0).long(), torch.where(banned, -torch.inf, 0.0))

    @torch.inference_mode()
    def follow(self, row: Tensor, token: Tensor) -> None:
        """Note a drawn token, int64 [A], for each row, int64 [A]; no row is there twice."""
        said = self._lines[:, -1]
        said.index_copy_(0, row, torch.cat((said[row][:, 1:], token[:, None].int()), dim=1))

    def _new_lines(self, rows: int) -> Tensor:
        return torch.full((rows, LINES, WIDTH), _NOTHING, dtype=torch.int32, device=self._device)
