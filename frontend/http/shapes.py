"""What is answered: the JSON of both endpoints, whole and in chunks."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from frontend.http.errors import ApiError
from frontend.http.logprobs import characters, of_chat, of_completion
from frontend.http.prompts import Prompts
from frontend.token_pieces import TokenPieces
from protocol.logprobs import Logprobs
from protocol.messages import Chunk, Finish

FINISH_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length"}
"""Every other end is an error here."""

DONE = b"data: [DONE]\n\n"


class CompletionChoices:
    """Choices of /v1/completions."""

    prefix: ClassVar = "cmpl-"
    whole_object: ClassVar = "text_completion"
    chunk_object: ClassVar = "text_completion"

    def logprobs(self, known: Logprobs, pieces: TokenPieces, offset: int) -> dict[str, Any]:
        """Return what a choice says of some tokens, the first of which begins at character `offset`."""
        return of_completion(known, pieces, offset)

    def whole(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str) -> dict[str, Any]:
        """Return a complete choice."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def add_prompts(self, answer: dict[str, Any], listings: Sequence[list[dict[str, Any] | None]]) -> None:
        """Add to a complete answer what is said of the prompt of each choice."""
        for choice, listing in zip(answer["choices"], listings, strict=True):
            choice["prompt_logprobs"] = listing

    def opening(self, index: int) -> Iterable[dict[str, Any]]:
        """Return what a choice of a stream begins with."""
        return ()

    def news(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> Iterable[dict[str, Any]]:
        """Return what a choice of a stream goes on with."""
        return ({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason},)


class ChatChoices:
    """Choices of /v1/chat/completions."""

    prefix: ClassVar = "chatcmpl-"
    whole_object: ClassVar = "chat.completion"
    chunk_object: ClassVar = "chat.completion.chunk"

    def logprobs(self, known: Logprobs, pieces: TokenPieces, offset: int) -> dict[str, Any]:
        """Return what a choice says of some tokens."""
        return of_chat(known, pieces)

    def whole(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str) -> dict[str, Any]:
        """Return a complete choice."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def add_prompts(self, answer: dict[str, Any], listings: Sequence[list[dict[str, Any] | None]]) -> None:
        """Add to a complete answer what is said of its one prompt."""
        answer["prompt_logprobs"] = listings[0]

    def opening(self, index: int) -> Iterable[dict[str, Any]]:
        """Return what a choice of a stream begins with."""
        return (self._delta(index, {"role": "assistant", "content": ""}),)

    def news(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> Iterable[dict[str, Any]]:
        """Return what a choice of a stream goes on with: text, then an end without any."""
        if text or logprobs is not None:
            yield self._delta(index, {"content": text}, logprobs=logprobs)
        if reason is not None:
            yield self._delta(index, {}, reason)

    def _delta(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


@dataclass(frozen=True, slots=True)
class Shape:
    """One answer's frame: the same id and time in all that is said of it. `created` is in seconds since 1970.

    Of each prompt there are `samples` choices, one behind the other.
    """

    end: ClassVar[bytes] = DONE

    choices: CompletionChoices | ChatChoices
    model: str
    include_usage: bool
    continuous_usage: bool
    samples: int
    pieces: TokenPieces
    prompts: Prompts
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    told: dict[int, int] = field(default_factory=dict)  # characters of tokens that log probabilities were told of
    begun: set[int] = field(default_factory=set)  # choices of a stream whose prompts were told
    held: dict[int, list[Chunk]] = field(default_factory=dict)  # until that can be, by prompt
    created: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp()))

    @property
    def steady(self) -> bool:
        """Whether what is told of two pieces of a choice's text differs in that text alone."""
        return not (self.prompts.echoed or self.prompts.listed or self.continuous_usage)

    def expect(self, tokens: int) -> None:
        """Hear how long the next prompt is; raises `ApiError` if there would be too much to tell of all of them."""
        self.prompts.expect(tokens)

    def place(self, chunk: Chunk) -> int:
        """Return the index of the choice that a chunk belongs to."""
        return chunk.request * self.samples + chunk.index

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the answer in one piece; `chunks` are the last of each choice, which have all of its text."""
        for chunk in chunks:
            self.prompts.take(chunk)
        choices = [
            self.choices.whole(
                self.place(chunk),
                self.prompts.echo(chunk.request) + chunk.text,
                _behind(self.prompts.logprobs(chunk.request), self._logprobs(chunk)),
                FINISH_REASONS[Finish(chunk.finish)],
            )
            for chunk in chunks
        ]
        answer = self._frame(self.choices.whole_object, choices) | {"usage": usage(chunks)}
        if self.prompts.listed:
            self.choices.add_prompts(answer, [self.prompts.listing(chunk.request) for chunk in chunks])
        return answer

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Return the chunks that a choice begins with."""
        return [self._chunk([choice]) for choice in self.choices.opening(index)]

    def news(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Return the chunks that tell of the core's; none if no text has become certain.

        What is told of a prompt comes before all else of its choices; these wait until it is known.
        """
        self.prompts.take(chunk)
        if not self.prompts.ready(chunk.request):
            self.held.setdefault(chunk.request, []).append(chunk)
            return []
        return [told for each in (*self.held.pop(chunk.request, ()), chunk) for told in self._news(each)]

    def _news(self, chunk: Chunk) -> list[dict[str, Any]]:
        place, echo = self.place(chunk), []
        if self.prompts.echoed and place not in self.begun:
            self.begun.add(place)
            text, of_prompt = self.prompts.echo(chunk.request), self.prompts.logprobs(chunk.request)
            echo = [self._chunk([choice]) for choice in self.choices.news(place, text, of_prompt, None)]
        reason = FINISH_REASONS.get(Finish(chunk.finish))
        logprobs = self._logprobs(chunk)
        if not chunk.text and logprobs is None and reason is None:
            return echo
        counts = {"usage": _counts(chunk.prompt_tokens, chunk.output_tokens)} if self.continuous_usage else {}
        news = self.choices.news(place, chunk.text, logprobs, reason)
        return [*echo, *[self._chunk([choice]) | counts for choice in news]]

    def closing(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return what follows the last choice's end: the token counts, if they were asked for."""
        return [self._chunk([]) | {"usage": usage(chunks)}] if self.include_usage else []

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        """Return what a stream ends with if it fails."""
        return [error.body()]

    def _logprobs(self, chunk: Chunk) -> dict[str, Any] | None:
        known = chunk.logprobs
        if known is None or not len(known):
            return None
        place = self.place(chunk)
        offset = self.told.get(place, len(self.prompts.echo(chunk.request)))
        self.told[place] = offset + characters(known, self.pieces)
        return self.choices.logprobs(known, self.pieces, offset)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        frame = self._frame(self.choices.chunk_object, choices)
        return frame | {"usage": None} if self.include_usage else frame

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.choices.prefix + self.token,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _behind(first: dict[str, Any] | None, rest: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what is said of a prompt's tokens, if anything is, with what is of an answer's behind it."""
    if first is None or rest is None:
        return first or rest
    return {name: [*first[name], *rest[name]] for name in first}


def usage(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Return the token counts of all choices together; an end token counts, a prompt does once for all its samples."""
    prompts = [chunk for chunk in chunks if chunk.index == 0]
    prompt, output = sum(chunk.prompt_tokens for chunk in prompts), sum(chunk.output_tokens for chunk in chunks)
    cached = sum(chunk.cached_tokens for chunk in prompts)
    return _counts(prompt, output) | {"prompt_tokens_details": {"cached_tokens": cached}}


def _counts(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
