"""Log probabilities of what was sampled, or stands in a prompt, and of what was likeliest in its place."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.logprobs import LOWEST_LOGPROB

SCORED_AT_A_TIME = 256
"""Of so many tokens there are logits at once, however many a step scores: they are what takes memory."""


def list_logprobs(logits: Tensor, token: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return (token int64, logprob float32), both [L, width]: `token` int64 [L] first, then the likeliest of each row.

    `logits` float32 [L, V] are the model's own, before anything was done to them; width - 1 is at most V. Nothing is
    lower than `LOWEST_LOGPROB`, and nothing is NaN: a row of NaN has a status that says so.
    """
    logprobs = logits.log_softmax(dim=-1)
    own = logprobs.gather(1, token[:, None])
    likeliest, ids = logprobs.topk(width - 1)
    values = torch.cat((own, likeliest), dim=1).nan_to_num(LOWEST_LOGPROB, neginf=LOWEST_LOGPROB)
    return torch.cat((token[:, None], ids), dim=1), values.clamp(LOWEST_LOGPROB, 0.0)


def score_size(width: int) -> int:
    """Return how many numbers a score of `width` log probabilities takes."""
    return 1 + 2 * width


def list_scores(logits: Tensor, token: Tensor, width: int) -> Tensor:
    """Return int32 [N, score_size(width)] for each `token`, int64 [N]: its rank, tokens, their log probabilities' bits.

    The latter two are those of `list_logprobs`. The rank is 1 for the likeliest; whoever is as likely is not likelier.
    """
    own = logits.gather(1, token[:, None])
    rank = (logits > own).sum(dim=1, keepdim=True) + 1
    tokens, logprobs = list_logprobs(logits, token, width)
    return torch.cat((rank.int(), tokens.int(), logprobs.view(torch.int32)), dim=1)


def unlisted(
    scores: NDArray[np.int32], entries: NDArray[np.uint8]
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.uint32]]:
    """Return tokens, log probabilities and ranks of what `list_scores` made, `entries` of the former two for each."""
    width = int(entries.max())
    rows = scores.reshape(len(entries), score_size(width))
    within = np.arange(width) < entries[:, None]
    tokens, logprobs = np.ascontiguousarray(rows[:, 1 : 1 + width]), np.ascontiguousarray(rows[:, 1 + width :])
    return tokens.view(np.uint32)[within], logprobs.view(np.float32)[within], rows[:, 0].astype(np.uint32)
