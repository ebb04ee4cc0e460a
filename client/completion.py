"""What comes back."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import Chunk


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token of the answer was: `logprob`, with the likeliest in its place as (token id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    `finish_reason` is `stop` (an end token, a stop token or a stop string), `length`, `timeout` or `abort`.
    `token_ids` include the token that ended it, `text` does not (unless `include_stop`). Of the prompt's tokens,
    `cached_tokens` were not computed: the server still had what it needs of them. `logprobs` has an entry for
    each of `token_ids`, if they were asked for; -9999 stands for whatever is lower.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of a streamed answer. Text may lag its tokens: half a character is held back, for one.

    Of several answers to one prompt it belongs to that of `index`.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0


def logprobs_of(chunk: Chunk) -> tuple[TokenLogprob, ...] | None:
    """Return what a chunk says of its tokens, if it was asked to."""
    known = chunk.logprobs
    if known is None:
        return None
    return tuple(TokenLogprob(*own, tuple(top)) for own, *top in filter(None, known.entries()))
