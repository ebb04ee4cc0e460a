"""A text to token ids, unless it is so long that everybody else would wait."""

from __future__ import annotations

from frontend.model_text import ModelText
from frontend.text_error import TOO_LONG, TextError

MOST_CHARACTERS_A_TOKEN = 32
"""A text with more of them for each token of the context is refused unread: only runs of blanks could fit."""


def read(text: ModelText, source: str, max_model_len: int, *, add_special: bool, at_fault: str) -> list[int]:
    """Return the ids of `source`, which is what `at_fault` names; `TextError` if it is longer than any context.

    With `add_special`, what the tokenizer puts around a text is added. There may be more ids than the context has
    room for.
    """
    most = min(text.longest_token, MOST_CHARACTERS_A_TOKEN) * max_model_len
    if len(source) > most:
        # Encoding this for seconds, only to refuse it, would keep everybody else waiting.
        raise TextError(
            f"the prompt has {len(source)} characters, at most {most} are read for a context of {max_model_len} tokens",
            at_fault=at_fault,
            code=TOO_LONG,
        )
    return text.tokenizer.encode(source, add_special=add_special)
