"""The texts that come with a model, and JSON in them or on a command line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from checkpoint.errors import CheckpointError

MOST_MIB = 256
"""The largest tokenizers have an eighth of it."""

LONGEST_INTEGER = 1000
"""Digits of an integer in JSON; Python itself reads a few thousand, and speaks of its own settings beyond."""


def check_small_file(path: Path) -> None:
    """Raise `CheckpointError` for what may never be read to its end: a pipe, a device, a file of absurd size.

    Whatever else is wrong with it shows when it is read; an `OSError` such as that it is not there may be raised here.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise CheckpointError(f"{path}: is no regular file")
    if status.st_size > MOST_MIB * 2**20:
        raise CheckpointError(f"{path}: has {status.st_size >> 20} MiB, at most {MOST_MIB} are read")


def read_small_file(path: Path) -> str:
    """Return the text of a file; raises as `check_small_file` does, `OSError`, or `UnicodeDecodeError`."""
    check_small_file(path)
    return path.read_text(encoding="utf-8")


def parse_json(text: str) -> Any:
    """Return what JSON says; raises `ValueError`, in words that fit behind a colon, or `RecursionError`."""
    return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)
