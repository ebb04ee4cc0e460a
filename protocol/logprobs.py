"""Log probabilities of tokens in a row, as columns: each token's own, and those of the likeliest in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

MOST_LOGPROBS = 20
"""Of so many of the likeliest tokens a request may ask for the log probability, beside that of the token that came."""

MOST_SCORES = 2**20
"""A prompt's log probabilities are no more than that, all of its tokens together: they travel in one frame."""

LOWEST_LOGPROB = -9999.0
"""Stands for whatever is lower, minus infinity included: JSON has no word for that."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """`count` entries for each of some tokens, u1[tokens]; the first of them is about the token that came itself.

    The others are about the likeliest tokens, by falling probability. `token` u4 and `logprob` f4 have all entries in
    a row. A count of 0 is for a token about which nothing is known, or was asked.
    """

    count: NDArray[np.uint8]
    token: NDArray[np.uint32]
    logprob: NDArray[np.float32]

    def __len__(self) -> int:
        """How many tokens it is about."""
        return len(self.count)

    def part(self, start: int, stop: int) -> Logprobs:
        """Return what it says about the tokens [start, stop)."""
        first, last = int(self.count[:start].sum()), int(self.count[:stop].sum())
        return Logprobs(self.count[start:stop], self.token[first:last], self.logprob[first:last])

    def of(self, places: Sequence[int]) -> list[Logprobs]:
        """Return what it says about each of some tokens alone."""
        ends = [0, *np.cumsum(self.count, dtype=np.int64).tolist()]
        return [
            Logprobs(
                self.count[place : place + 1],
                self.token[ends[place] : ends[place + 1]],
                self.logprob[ends[place] : ends[place + 1]],
            )
            for place in places
        ]

    def entries(self) -> list[list[tuple[int, float]]]:
        """Return the entries of each token as (token id, log probability)."""
        all_entries = iter(zip(self.token.tolist(), self.logprob.tolist(), strict=True))
        return [list(islice(all_entries, count)) for count in self.count.tolist()]


NOTHING = Logprobs(np.zeros(1, "<u1"), np.zeros(0, "<u4"), np.zeros(0, "<f4"))
"""About one token."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How likely tokens of a prompt were, each in its place: their log probabilities, and the `rank` of each.

    `rank` u4[tokens]: 1 for the likeliest of the vocabulary, 2 if one is likelier; 0 for one that was not scored, as
    nothing stands before the first.
    """

    logprobs: Logprobs
    rank: NDArray[np.uint32]

    def __len__(self) -> int:
        """How many tokens it is about."""
        return len(self.rank)

    def part(self, start: int, stop: int) -> Scores:
        """Return what it says about the tokens [start, stop)."""
        return Scores(self.logprobs.part(start, stop), self.rank[start:stop])


UNSCORED = Scores(NOTHING, np.zeros(1, "<u4"))
"""Of one token."""


def joined_scores(parts: Sequence[Scores]) -> Scores:
    """Return what several say about the tokens of all of them; there is at least one."""
    return Scores(joined([part.logprobs for part in parts]), np.concatenate([part.rank for part in parts]))


def joined(parts: Sequence[Logprobs]) -> Logprobs:
    """Return what several say about the tokens of all of them; without any, it is about no tokens."""
    if not parts:
        return NOTHING.part(0, 0)
    return Logprobs(
        count=np.concatenate([part.count for part in parts]),
        token=np.concatenate([part.token for part in parts]),
        logprob=np.concatenate([part.logprob for part in parts]),
    )
