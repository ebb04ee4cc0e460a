"""What an answer tells of its prompts, beside how many tokens they have: their texts, and how likely they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.http.errors import INVALID_VALUE, ApiError
from frontend.http.logprobs import of_prompt, prompt_listing
from frontend.token_pieces import TokenPieces
from protocol.logprobs import MOST_SCORES, Scores
from protocol.messages import Chunk


class Prompts:
    """The prompts of one answer. How likely one's tokens are, a chunk of its choice 0 says, for all of its choices."""

    def __init__(
        self,
        pieces: TokenPieces,
        *,
        echoes: Sequence[str] | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
        copies: int,
    ) -> None:
        """Have each choice begin with its prompt's text, if there are `echoes`, which have one for each.

        `logprobs` and `prompt_logprobs` are as they were asked for, the former beside the echo or not. What is said of
        a prompt is there in so many `copies`.
        """
        self._pieces = pieces
        self._echoes = echoes
        self._logprobs = logprobs if echoes is not None else None
        self._prompt_logprobs = prompt_logprobs
        of_token = [1 + each for each in (self._logprobs, prompt_logprobs) if each is not None]
        self._entries_of_token = copies * sum(of_token)
        self._entries = 0  # of all prompts so far
        self._known: dict[int, tuple[list[int], Scores]] = {}
        self._told: dict[int, dict[str, Any]] = {}  # what is the same for all choices of a prompt is made once
        self._listings: dict[int, list[dict[str, Any] | None]] = {}

    @property
    def listed(self) -> bool:
        """Whether answers have log probabilities of their prompts in a place of their own."""
        return self._prompt_logprobs is not None

    @property
    def echoed(self) -> bool:
        """Whether choices begin with their prompts."""
        return self._echoes is not None

    def expect(self, tokens: int) -> None:
        """Hear how long the next prompt is; raises `ApiError` if there would be too much to tell of all of them.

        Nobody else is served while an answer is put together, nor are there gigabytes for it.
        """
        self._entries += tokens * self._entries_of_token
        if self._entries > MOST_SCORES:
            name = "prompt_logprobs" if self.listed else "logprobs"
            raise ApiError(
                400,
                f"{name}: of all prompts, in each of their choices, there would be at least {self._entries} log "
                f"probabilities, at most {MOST_SCORES} are told: ask for fewer choices, or send the prompts in parts",
                param=name,
                code=INVALID_VALUE,
            )

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
        if prompt not in self._told:
            length = len(self.echo(prompt))
            self._told[prompt] = of_prompt(*self._known[prompt], self._pieces, self._logprobs, length)
        return self._told[prompt]

    def listing(self, prompt: int) -> list[dict[str, Any] | None]:
        """Return what is said of a prompt's tokens in that place; some chunk must have said it."""
        assert self._prompt_logprobs is not None
        if prompt not in self._listings:
            self._listings[prompt] = prompt_listing(*self._known[prompt], self._pieces, self._prompt_logprobs)
        return self._listings[prompt]
