"""What an answer tells of its prompts, beside how many tokens they have: their texts, and how likely they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.http.logprobs import of_prompt, prompt_listing
from frontend.token_pieces import TokenPieces
from protocol.logprobs import Scores
from protocol.messages import Chunk


class Prompts:
    """The prompts of one answer. How likely one's tokens are, a chunk of its choice 0 says, for all of its choices."""

    def __init__(
        self, pieces: TokenPieces, *, echoes: Sequence[str] | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> None:
        """Have each choice begin with its prompt's text, if there are `echoes`, which have one for each.

        `logprobs` and `prompt_logprobs` are as they were asked for, the former beside the echo or not.
        """
        self._pieces = pieces
        self._echoes = echoes
        self._logprobs = logprobs if echoes is not None else None
        self._prompt_logprobs = prompt_logprobs
        self._known: dict[int, tuple[list[int], Scores]] = {}

    @property
    def listed(self) -> bool:
        """Whether answers have log probabilities of their prompts in a place of their own."""
        return self._prompt_logprobs is not None

    @property
    def echoed(self) -> bool:
        """Whether choices begin with their prompts."""
        return self._echoes is not None

    def take(self, chunk: Chunk) -> None:
        """Keep what a chunk says of its prompt, if it does."""
        if (scores := chunk.scores) is not None and chunk.prompt_token_ids is not None:
            self._known[chunk.request] = chunk.prompt_token_ids.tolist(), scores

    def ready(self, prompt: int) -> bool:
        """Whether all is known that the choices of a prompt begin with."""
        return self._logprobs is None or prompt in self._known

    def echo(self, prompt: int) -> str:
        """Return the text that the choices of a prompt begin with."""
        return "" if self._echoes is None else self._echoes[prompt]

    def logprobs(self, prompt: int) -> dict[str, Any] | None:
        """Return what the choices of a prompt that is ready say of the tokens of its text."""
        if self._logprobs is None:
            return None
        return of_prompt(*self._known[prompt], self._pieces, self._logprobs, len(self.echo(prompt)))

    def listing(self, prompt: int) -> list[dict[str, Any] | None]:
        """Return what is said of a prompt's tokens in that place; some chunk must have said it."""
        assert self._prompt_logprobs is not None
        return prompt_listing(*self._known[prompt], self._pieces, self._prompt_logprobs)
