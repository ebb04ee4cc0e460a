"""Log probabilities as OpenAI's API shows them."""

from __future__ import annotations

from typing import Any

from frontend.token_pieces import TokenPieces
from protocol.logprobs import Logprobs, Scores


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
    return {
        "tokens": tokens,
        "token_logprobs": [entries[0][1] for entries in known],
        "top_logprobs": [_top(entries, pieces) for entries in known],
        "text_offset": [end - len(token) for end, token in zip(ends, tokens, strict=True)],
    }


def of_prompt(ids: list[int], scores: Scores, pieces: TokenPieces, most: int, length: int) -> dict[str, Any]:
    """Return what a completion's choice says of the prompt that it begins with, whose text has `length` characters.

    Of the first token nobody says anything; of the others, `most` of the likeliest in its place at most. They are
    placed from the end: what a tokenizer puts in front of a text is no part of it.
    """
    all_entries = [entries[: 1 + most] for entries in scores.logprobs.entries()]
    tokens = [_text(token, pieces) for token in ids]
    offset = length - sum(map(len, tokens))
    ends = [offset := offset + len(token) for token in tokens]
    return {
        "tokens": tokens,
        "token_logprobs": [entries[0][1] if entries else None for entries in all_entries],
        "top_logprobs": [_top(entries, pieces) if entries else None for entries in all_entries],
        "text_offset": [max(0, end - len(token)) for end, token in zip(ends, tokens, strict=True)],
    }


def prompt_listing(ids: list[int], scores: Scores, pieces: TokenPieces, most: int) -> list[dict[str, Any] | None]:
    """Return what vLLM's `prompt_logprobs` say: nothing of the first token, and of each other it and the likeliest."""
    told: list[dict[str, Any] | None] = []
    for rank, entries in zip(scores.rank.tolist(), scores.logprobs.entries(), strict=True):
        if not entries:
            told.append(None)
            continue
        ranked = [(rank, entries[0]), *enumerate(entries[1 : 1 + most], 1)]
        each = {
            str(token): {"logprob": logprob, "rank": place, "decoded_token": _text(token, pieces)}
            for place, (token, logprob) in ranked
        }
        told.append(each)
    return told


def characters(logprobs: Logprobs, pieces: TokenPieces) -> int:
    """Return how long the tokens are, as `of_completion` shows them."""
    return sum(len(_text(entries[0][0], pieces)) for entries in _known(logprobs))


def _known(logprobs: Logprobs) -> list[list[tuple[int, float]]]:
    return [entries for entries in logprobs.entries() if entries]


def _top(entries: list[tuple[int, float]], pieces: TokenPieces) -> dict[str, float]:
    top: dict[str, float] = {}
    for token, logprob in (*entries[1:], entries[0]):
        top.setdefault(_text(token, pieces), logprob)
    return top


def _entry(token: int, logprob: float, pieces: TokenPieces) -> dict[str, Any]:
    return {"token": _text(token, pieces), "logprob": logprob, "bytes": list(pieces.inside(token))}


def _text(token: int, pieces: TokenPieces) -> str:
    return pieces.inside(token).decode(errors="replace")
