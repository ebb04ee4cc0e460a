"""What becomes of one streamed request, event by event, and the latencies that follow from it.

Moments are seconds of the host's monotonic clock, which all of its processes share. The definitions are those of vLLM's
`bench serve`:

    TTFT   first - sent                          until the first event that brings text
    ITL    each event with text - the one before it, whatever number of tokens they bring
    E2EL   last - sent                           until the last event of a choice
    TPOT   (E2EL - TTFT) / (tokens - 1)          of answers with two tokens at least
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DONE = b"[DONE]"


@dataclass(slots=True)
class Course:
    """One request: when it was due, when it was sent, and when what came.

    Tokens are those that the server counts in the chunk of its `usage`: an event may bring several of them, or a piece
    of one. Where no such chunk came, `tokens` is -1.
    """

    due: float  # when it was to be sent, by the schedule
    free: float = 0.0  # from when on it could be: that, or when another had made room for it, if that was later
    sent: float = 0.0
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    events: int = 0  # those with text
    prompt_tokens: int = 0
    tokens: int = -1
    error: str = ""  # of which kind; "" if it was answered
    about: str = ""  # the error in words
    newest: float = 0.0  # when its last text came

    def take(self, event: bytes, now: float) -> bool:
        """Take an event in; return whether it was the last one, or an error, after which nothing counts."""
        if event == DONE:
            return True
        try:
            said = json.loads(event)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            self.fail("no JSON in an event", repr(event[:80]))
        elif said.get("error"):
            self.fail("error in the stream", _message(said))
        else:
            try:
                self._read(said, now)
            except (AttributeError, IndexError, KeyError, TypeError):
                self.fail("an event that is not OpenAI's", repr(event[:80]))
        return bool(self.error)

    def _read(self, said: dict[str, Any], now: float) -> None:
        if usage := said.get("usage"):
            self.prompt_tokens, self.tokens = usage["prompt_tokens"], usage["completion_tokens"]
        choices = said.get("choices")
        if not choices:
            return
        self.last = now
        if not _has_text(choices[0]):
            return
        self.events += 1
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.newest)
        self.newest = now

    def fail(self, kind: str, about: str) -> None:
        """Note that it was not answered, and why; the first reason stays."""
        if not self.error:
            self.error, self.about = kind, about[:300]

    def end(self) -> None:
        """Note that nothing more comes: an answer without a single choice is none."""
        if not self.error and not self.last:
            self.fail("empty answer", "the stream brought no choice")

    @property
    def output_tokens(self) -> int:
        """How many tokens came; if the server did not say, its events with text stand for them."""
        return self.tokens if self.tokens >= 0 else self.events

    @property
    def ttft(self) -> float:
        """Seconds from its sending to its first text; to its end, if it had none."""
        return (self.last if self.first is None else self.first) - self.sent

    @property
    def e2el(self) -> float:
        """Seconds from its sending to its end."""
        return self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """Mean seconds a token behind the first one; None of a single token."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def refused(status: int, body: bytes) -> tuple[str, str]:
    """Return kind and words of an answer that is an error from the beginning."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    return f"status {status}", _message(said) if isinstance(said, dict) else body[:300].decode(errors="replace")


def _message(said: dict[str, Any]) -> str:
    error = said.get("error", said)
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _has_text(choice: dict[str, Any]) -> bool:
    if "text" in choice:
        return bool(choice["text"])
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
