"""What comes back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    `finish_reason` is `stop` (an end token, a stop token or a stop string), `length`, `timeout` or `abort`.
    `token_ids` include the token that ended it, `text` does not (unless `include_stop`). Of the prompt's tokens,
    `cached_tokens` were not computed: the server still had what it needs of them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of a streamed answer. Text may lag its tokens: half a character is held back, for one."""

    text: str
    token_ids: tuple[int, ...]
