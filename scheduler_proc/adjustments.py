"""What a worker must know of tokens to adjust a request's logits: what it has counted itself is gone with the slot."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from protocol.messages import COUNT_MAX, MOST_BAD_TOKENS, MOST_BAD_WORDS, MOST_TOKEN_IDS, Note, Submit
from scheduler_proc.request import Request

_NONE = np.zeros(0, np.uint32)

_Noted = tuple[Note | NDArray[np.uint8], NDArray[np.uint32]]
"""Tokens, and of what kind they are, or each of them is."""


class AdjustmentColumns(TypedDict, total=False):
    """The columns of a plan that are about adjusted slots; none of them if it begins none."""

    adjust_slot: NDArray[np.uint32]
    penalty: NDArray[np.float32]
    free_from: NDArray[np.uint32]
    notes: NDArray[np.uint32]
    note: NDArray[np.uint8]
    note_token: NDArray[np.uint32]
    bias: NDArray[np.float32]


def is_adjusted(ask: Submit) -> bool:
    """Whether a request wants its logits to be adjusted."""
    return (
        _is_penalised(ask)
        or ask.min_tokens > 0
        or ask.bias_token_ids is not None
        or ask.allowed_token_ids is not None
        or ask.banned_token_ids is not None
        or ask.bad_word_lengths is not None
    )


def most_notes(request: Request, end_tokens: NDArray[np.uint32]) -> int:
    """Return how many notes a request needs at most if it gets a slot now."""
    ask = request.ask
    if not is_adjusted(ask):
        return 0
    listed = sum(map(len, listed_tokens(ask)))
    ends = len(end_tokens) + len(ask.stop_token_ids) if ask.min_tokens else 0
    recent = 0 if ask.bad_word_lengths is None else len(_recent(request, ask.bad_word_lengths))
    return listed + ends + recent + (request.waiting_len if _is_penalised(ask) else 0)


def adjustment_columns(begins: list[Request], end_tokens: NDArray[np.uint32]) -> AdjustmentColumns:
    """Return what is to be said of those that begin; `end_tokens`, u4, are the model's."""
    adjusted = [request for request in begins if is_adjusted(request.ask)]
    if not adjusted:
        return {}
    asks = [request.ask for request in adjusted]
    notes = [_notes(request, end_tokens) for request in adjusted]
    return AdjustmentColumns(
        adjust_slot=np.array([request.slot for request in adjusted], np.uint32),
        penalty=np.array(
            [(ask.repetition_penalty, ask.presence_penalty, ask.frequency_penalty) for ask in asks], np.float32
        ).reshape(-1),
        free_from=np.array([min(len(ask.prompt) + ask.min_tokens, COUNT_MAX) for ask in asks], np.uint32),
        notes=np.array([sum(len(tokens) for _, tokens in own) for own in notes], np.uint32),
        note=np.concatenate([np.full(len(tokens), note, np.uint8) for own in notes for note, tokens in own]),
        note_token=np.concatenate([tokens for own in notes for _, tokens in own]),
        bias=np.concatenate([np.zeros(0, np.float32) if ask.bias is None else ask.bias for ask in asks]),
    )


def listed_tokens(ask: Submit) -> list[NDArray[np.uint32]]:
    """Return the tokens that a request names to bias, to allow and to ban, and those of bad words."""
    lists = (ask.bias_token_ids, ask.allowed_token_ids, ask.banned_token_ids, ask.bad_word_tokens)
    return [_some(tokens) for tokens in lists]


def nothing_left(ask: Submit, end_tokens: NDArray[np.uint32], vocab_size: int) -> bool:
    """Whether a request may come to where no token is left that might be drawn; its ids are in the vocabulary.

    Of bad words all that end one are counted as banned: which of them are at once depends on what has come.
    """
    ends = _NONE if ask.bad_word_lengths is None else _some(ask.bad_word_tokens)[_last_places(ask.bad_word_lengths)]
    if ask.allowed_token_ids is None and ask.banned_token_ids is None and not ask.min_tokens and not len(ends):
        return False
    left = np.full(vocab_size, ask.allowed_token_ids is None)
    left[_some(ask.allowed_token_ids)] = True
    left[_some(ask.banned_token_ids)] = False
    left[ends] = False
    if ask.min_tokens:
        left[ask.stop_token_ids if ask.ignore_eos else np.concatenate((end_tokens, ask.stop_token_ids))] = False
    return not left.any()


def wrong_lists(ask: Submit) -> str:
    """Return what is wrong with the lengths of a request's lists of tokens, or nothing."""
    for name, tokens in (
        ("bias_token_ids", ask.bias_token_ids),
        ("allowed_token_ids", ask.allowed_token_ids),
        ("banned_token_ids", ask.banned_token_ids),
    ):
        if tokens is not None and len(tokens) > MOST_TOKEN_IDS:
            return f"{len(tokens)} {name}, at most {MOST_TOKEN_IDS} are allowed"
    if ask.bad_word_lengths is not None and len(ask.bad_word_lengths) > MOST_BAD_WORDS:
        return f"{len(ask.bad_word_lengths)} bad words of several tokens, at most {MOST_BAD_WORDS} are allowed"
    if ask.bad_word_tokens is not None and len(ask.bad_word_tokens) > MOST_BAD_TOKENS:
        return f"bad words of {len(ask.bad_word_tokens)} tokens in all, at most {MOST_BAD_TOKENS} are allowed"
    return ""


def _is_penalised(ask: Submit) -> bool:
    return ask.repetition_penalty != 1 or ask.presence_penalty != 0 or ask.frequency_penalty != 0


def _notes(request: Request, end_tokens: NDArray[np.uint32]) -> list[_Noted]:
    ask = request.ask
    notes: list[_Noted] = [
        (Note.PROMPT, ask.prompt if ask.repetition_penalty != 1 else _NONE),
        (Note.OUTPUT, request.output if _is_penalised(ask) else _NONE),
        (Note.END, request.ends_at(end_tokens) if len(request.output) < ask.min_tokens else _NONE),
        (Note.BIAS, _some(ask.bias_token_ids)),
        (Note.ALLOWED, _some(ask.allowed_token_ids)),
        (Note.BANNED, _some(ask.banned_token_ids)),
    ]
    if ask.bad_word_lengths is not None:
        words = np.full(int(ask.bad_word_lengths.sum(dtype=np.int64)), Note.WORD, np.uint8)
        words[_last_places(ask.bad_word_lengths)] = Note.WORD_END
        notes += [(Note.RECENT, _recent(request, ask.bad_word_lengths)), (words, _some(ask.bad_word_tokens))]
    return notes


def _recent(request: Request, lengths: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the output's last tokens, u4: as many as stand before the end of the longest of some words."""
    before = int(lengths.max(initial=1)) - 1
    return request.output[max(0, len(request.output) - before) :]


def _last_places(lengths: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where each of some words that follow each other has its last token."""
    return np.cumsum(lengths, dtype=np.int64) - 1


def _some(tokens: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
    return _NONE if tokens is None else tokens
