"""Log probabilities as OpenAI's API shows them."""

from __future__ import annotations

from typing import Any

from frontend.token_pieces import TokenPieces
from protocol.logprobs import Logprobs


def of_chat(logprobs: Logprobs, pieces: TokenPieces) -> dict[str, Any]:
    """Return what a chat's choice says of some tokens."""
    content = [
        {**_entry(*own, pieces), "top_logprobs": [_entry(*each, pieces) for each in likeliest]}
        for own, *likeliest in _known(logprobs)
    ]
    return {"content": content, "refusal": None}


def of_completion(logprobs: Logprobs, pieces: TokenPieces, offset: int) -> dict[str, Any]:
    """Return what a completion's choice says of some tokens, the first of which begins at character `offset`.

    Of two tokens that look the same, as single bytes of a character do, the likelier one is shown.
    """
    known = _known(logprobs)
    tokens = [_text(entries[0][0], pieces) for entries in known]
    ends = [offset := offset + len(token) for token in tokens]
    tops: list[dict[str, float]] = []
    for entries in known:
        tops.append({})
        for token, logprob in (*entries[1:], entries[0]):
            tops[-1].setdefault(_text(token, pieces), logprob)
    return {
        "tokens": tokens,
        "token_logprobs": [entries[0][1] for entries in known],
        "top_logprobs": tops,
        "text_offset": [end - len(token) for end, token in zip(ends, tokens, strict=True)],
    }


def characters(logprobs: Logprobs, pieces: TokenPieces) -> int:
    """Return how long the tokens are, as `of_completion` shows them."""
    return sum(len(_text(entries[0][0], pieces)) for entries in _known(logprobs))


def _known(logprobs: Logprobs) -> list[list[tuple[int, float]]]:
    return [entries for entries in logprobs.entries() if entries]


def _entry(token: int, logprob: float, pieces: TokenPieces) -> dict[str, Any]:
    return {"token": _text(token, pieces), "logprob": logprob, "bytes": list(pieces.inside(token))}


def _text(token: int, pieces: TokenPieces) -> str:
    return pieces.inside(token).decode(errors="replace")
