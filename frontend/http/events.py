"""Server-sent events, one for each piece of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from protocol.messages import Chunk, Finish

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_MARK = "\ue000"  # stands where a text will; nothing comes behind that which could be taken for it

News = Callable[[Chunk], Iterable[dict[str, Any]]]
"""What is to be told of a chunk."""


def event(content: dict[str, Any]) -> bytes:
    """Return a server-sent event, which is named by its type if it has one."""
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {_JSON.encode(content)}\n\n".encode()


def events_of(contents: Iterable[dict[str, Any]]) -> bytes:
    """Return server-sent events, one behind the other."""
    return b"".join(map(event, contents))


class PlainEvents:
    """The events of an answer's pieces: if they differ in their text alone, what is the same in all is made once.

    They are, to the byte, those of `news`.
    """

    def __init__(self, news: News, place: Callable[[Chunk], int], *, steady: bool) -> None:
        """Tell of chunks as `news` does; `place` is the choice that a chunk belongs to.

        `steady` says that `news` knows nothing of what was told before, and looks at nothing but the text of a piece
        that has no log probabilities and is not the last.
        """
        self._news = news
        self._place = place
        self._steady = steady
        self._around: dict[int, tuple[bytes, bytes]] = {}  # what is before a choice's text, and behind it

    def of(self, chunk: Chunk) -> bytes:
        """Return the events that tell of a chunk; none if it has nothing to tell."""
        if not self._steady or chunk.finish != Finish.RUNNING or chunk.listed is not None or not chunk.text:
            return events_of(self._news(chunk))
        place = self._place(chunk)
        around = self._around.get(place)
        if around is None:
            before, _, behind = events_of(self._news(replace(chunk, text=_MARK))).rpartition(
                _JSON.encode(_MARK).encode()
            )
            around = self._around[place] = before, behind
        return around[0] + _JSON.encode(chunk.text).encode() + around[1]
