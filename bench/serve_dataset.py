"""Requests from a file: lengths, or chats that people had."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.contestant import BenchmarkError

Row = tuple[int | str, int]
"""Tokens of a prompt, or its text; and how many tokens are wanted."""

CHARACTERS_A_TOKEN = 4
"""Of English text, about: for servers that do not say how many tokens a text has."""

LEAST_TOKENS, MOST_PROMPT_TOKENS, MOST_TOKENS = 4, 1024, 2048
"""What of a chat is too short or too long to be taken, as vLLM has it."""


def read_dataset(path: str, most: int | None, count: Callable[[str], int | None]) -> list[Row]:
    """Return the rows of a file, at most so many of them; raises `BenchmarkError`.

    Each line of a .jsonl file is {"prompt": TOKENS, "output": TOKENS}. Any other file is a list of chats as ShareGPT
    has them: the first message of each is the prompt, and the answer to it says how many tokens are wanted. `count`
    returns how many a text has, if that is known.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"--dataset {path}: {getattr(error, 'strerror', None) or error}") from None
    rows = _lengths(path, text) if path.endswith(".jsonl") else _chats(path, text, most, count)
    if not rows:
        raise BenchmarkError(f"--dataset {path}: no request is in it")
    return rows[:most]


def _lengths(path: str, text: str) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            prompt, output = said["prompt"], said["output"]
            usable = type(prompt) is int and type(output) is int and prompt > 0 and output > 0
        except (ValueError, KeyError, TypeError):
            usable = False
        if not usable:
            raise BenchmarkError(f'--dataset {path}:{number}: must be {{"prompt": TOKENS, "output": TOKENS}}')
        rows.append((prompt, output))
    return rows


def _chats(path: str, text: str, most: int | None, count: Callable[[str], int | None]) -> list[Row]:
    try:
        chats = json.loads(text)
    except ValueError as error:
        raise BenchmarkError(f"--dataset {path}: it is not JSON: {error}") from None
    if not isinstance(chats, list):
        raise BenchmarkError(f"--dataset {path}: it is no list of chats, as ShareGPT's files are")
    rows: list[Row] = []
    for chat in chats:
        if most is not None and len(rows) == most:
            break
        turns = _turns(chat)
        if turns is None:
            continue
        prompt, output = (_tokens(each, count) for each in turns)
        fits = prompt <= MOST_PROMPT_TOKENS and prompt + output <= MOST_TOKENS
        if fits and min(prompt, output) >= LEAST_TOKENS:
            rows.append((turns[0], output))
    return rows


def _turns(chat: Any) -> Sequence[str] | None:
    """Return the first two messages of a chat, if it has them."""
    try:
        turns = [turn["value"] for turn in chat["conversations"][:2]]
    except (KeyError, TypeError):
        return None
    return turns if len(turns) == 2 and all(isinstance(each, str) for each in turns) else None


def _tokens(text: str, count: Callable[[str], int | None]) -> int:
    if len(text) > 32 * MOST_TOKENS:  # too long, however it is counted
        return MOST_TOKENS + 1
    counted = count(text)
    return -(-len(text) // CHARACTERS_A_TOKEN) if counted is None else counted
