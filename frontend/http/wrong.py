"""What the checks of single parameters say, before it is known which parameter it is about."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from frontend.http.errors import INVALID_TYPE, INVALID_VALUE
from frontend.text_error import shown


class WrongError(ValueError):
    """A parameter is not as it must be."""

    def __init__(self, text: str, *, at: str = "", code: str = INVALID_VALUE) -> None:
        """Say what is wrong; `at` leads on from the parameter, as in [3]."""
        super().__init__(text)
        self.at = at
        self.code = code


def not_a(rule: str, value: Any, at: str = "") -> WrongError:
    """Return the error for a value of the wrong type; `rule` says what it must be."""
    return WrongError(f"must be {rule}, got {shown(value)}", at=at, code=INVALID_TYPE)


def too_many(value: Sized, most: int, what: str) -> WrongError:
    """Return the error for a list or object that holds more than `most`; `what` they are."""
    return WrongError(f"must hold at most {most} {what}, got {len(value)}")
