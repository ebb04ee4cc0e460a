"""The error for what a user sent and cannot be served as it is, and how its words show values."""

from __future__ import annotations

import json
from typing import Any

MOST_SHOWN = 60
"""Characters of a value in an error: enough to recognise it."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that leaves no room for an answer: who sees it may try again with less."""

MOST_REASON_CHARACTERS = 2000
"""What is said to be wrong is cut there: a chat template may put whole messages into it."""

_JSON = json.JSONEncoder(ensure_ascii=False, default=repr)


class TextError(ValueError):
    """A prompt, message or stop string is at fault; the words are meant for the user."""

    def __init__(self, text: str, *, at_fault: str = "", code: str = "") -> None:
        """Say what is wrong; `at_fault` is a field of `Generate`, `code` one of OpenAI's, each where there is one."""
        super().__init__(text)
        self.at_fault = at_fault
        self.code = code

    @property
    def reason(self) -> str:
        """The words, of which there are not too many."""
        text = str(self)
        return text if len(text) <= MOST_REASON_CHARACTERS else f"{text[:MOST_REASON_CHARACTERS]} …"


def require_unicode(text: str, what: str, *, at_fault: str = "") -> None:
    """Raise `TextError` if `text` holds half of a surrogate pair, which no byte sequence can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TextError(
            f"{what} has a lone surrogate (U+{code:04X}) at position {error.start}", at_fault=at_fault
        ) from None


def shown(value: Any) -> str:
    """Return a value as its user wrote it, in JSON; of one that is long only the beginning, and no more is read.

    Halves of surrogate pairs are replaced: the text can be carried.
    """
    text = ""
    for piece in _JSON.iterencode(value[: MOST_SHOWN + 1] if isinstance(value, str) else value):
        text += piece[: MOST_SHOWN + 1]
        if len(text) > MOST_SHOWN:
            text = f"{text[:MOST_SHOWN]} …"
            break
    return text.encode(errors="replace").decode()
