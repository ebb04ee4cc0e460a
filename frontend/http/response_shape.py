"""What POST /v1/responses answers: a response with one message, whole or as typed events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, ClassVar

from frontend.http.errors import ApiError
from frontend.http.logprobs import of_chat
from frontend.http.response_parameters import ResponseParameters
from frontend.http.shapes import usage
from frontend.token_pieces import TokenPieces
from protocol.messages import Chunk, Finish

_PLACE = {"output_index": 0, "content_index": 0}
"""Where the text is: in the only part of the only message."""


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """One response: the same id and time in all that is said of it. `created` is in seconds since 1970."""

    end: ClassVar[bytes] = b""  # the last event says that it is the last

    asked: ResponseParameters
    model: str
    pieces: TokenPieces
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp()))
    texts: list[str] = field(default_factory=list)  # what a stream has told so far
    logprobs: list[dict[str, Any]] = field(default_factory=list)  # and of which tokens
    numbers: Iterator[int] = field(default_factory=count)  # of a stream's events

    @property
    def steady(self) -> bool:
        """Whether what is told of two pieces differs in their text alone; here events are numbered, too."""
        return False

    def expect(self, tokens: int) -> None:
        """Hear how long the prompt is, of which nothing is told."""

    def place(self, chunk: Chunk) -> int:
        """Return 0: there is one answer."""
        return 0

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the answer in one piece; of the only chunk, which has all of its text."""
        self._note(chunks[0])
        return self._ended(chunks[0])

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Return the events that a stream begins with."""
        began = self._response("in_progress")
        return [
            self._event("response.created", response=began),
            self._event("response.in_progress", response=began),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", ())),
            self._event("response.content_part.added", **self._where(), part=self._part()),
        ]

    def news(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Return the event that tells of the core's chunk; none if no text has become certain."""
        told = self._note(chunk)
        if not chunk.text and not told:
            return []
        return [self._event("response.output_text.delta", **self._where(), delta=chunk.text, logprobs=told)]

    def closing(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return the events that a stream ends with."""
        response, part = self._ended(chunks[0]), self._part()
        (item,) = response["output"]
        text, told = part["text"], part["logprobs"]
        return [
            self._event("response.output_text.done", **self._where(), text=text, logprobs=told),
            self._event("response.content_part.done", **self._where(), part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{response['status']}", response=response),
        ]

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        """Return the events that a stream ends with if it fails.

        The error is there twice, as OpenAI documents it and as its client finds it.
        """
        what = error.body()["error"]
        told = {name: what[name] for name in ("code", "message", "param")}
        response = self._response(
            "failed",
            error={"code": "server_error", "message": what["message"]},
            output=[self._item("incomplete", (self._part(),))],
        )
        return [
            self._event("error", **told, error=what),
            self._event("response.failed", response=response),
        ]

    def _note(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Take what a chunk says to what was told so far; returns what it says of its tokens."""
        known = chunk.logprobs
        told: list[dict[str, Any]] = [] if known is None else of_chat(known, self.pieces)["content"]
        self.texts.append(chunk.text)
        self.logprobs.extend(told)
        return told

    def _ended(self, chunk: Chunk) -> dict[str, Any]:
        cut = chunk.finish == Finish.LENGTH
        status = "incomplete" if cut else "completed"
        counts = usage([chunk])
        return self._response(
            status,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            output=[self._item(status, (self._part(),))],
            usage={
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        )

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        asked = self.asked
        return {
            "id": f"resp_{self.token}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": asked.user or None,
            **more,
        }

    def _item(self, status: str, content: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.token}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": list(content),
        }

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "annotations": [], "logprobs": list(self.logprobs), "text": "".join(self.texts)}

    def _where(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.token}", **_PLACE}

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        return {"type": kind, "sequence_number": next(self.numbers), **content}
