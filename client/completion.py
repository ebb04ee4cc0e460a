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
class PromptToken:
    """How likely a token of the prompt was: `logprob`, and `rank`, which is 1 for the likeliest. The first has neither.

    `top` are the likeliest in its place, as (token id, logprob).
    """

    token_id: int
    logprob: float | None
    rank: int | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    `finish_reason` is `stop` (an end token, a stop token or a stop string), `length`, `timeout` or `abort`.
    `token_ids` include the token that ended it, `text` does not (unless `include_stop`). Of the prompt's tokens,
    `cached_tokens` were not computed: the server still had what it needs of them. `logprobs` has an entry for
    each of `token_ids`, if they were asked for; -9999 stands for whatever is lower. `prompt_logprobs` has one for each
    token of the prompt; of several answers to it, the first has them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[PromptToken, ...] | None = None


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


def prompt_logprobs_of(chunk: Chunk) -> tuple[PromptToken, ...] | None:
    """Return what a chunk says of the prompt, if it is the one that does."""
    scores, tokens = chunk.scores, chunk.prompt_token_ids
    if scores is None or tokens is None:
        return None
    told = zip(tokens.tolist(), scores.rank.tolist(), scores.logprobs.entries(), strict=True)
    return tuple(
        PromptToken(token, entries[0][1], rank, tuple(entries[1:])) if entries else PromptToken(token, None, None, ())
        for token, rank, entries in told
    )
