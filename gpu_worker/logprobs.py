"""Log probabilities of what was sampled, and of what was likeliest in its place."""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.logprobs import LOWEST_LOGPROB


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
