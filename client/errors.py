"""What can go wrong for a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class StepaheadError(Exception):
    """The base of all errors of the client."""


class RequestRefusedError(StepaheadError):
    """The request can never be served as it is; the text says what to change."""


class RequestFailedError(StepaheadError):
    """The server accepted the request and failed at it; the text says how."""


class ServerBusyError(StepaheadError):
    """Too many requests wait already; the same one may be accepted later."""


class ServerLostError(StepaheadError):
    """No server is there, or the one that served the request is gone."""


class BatchError(StepaheadError):
    """Some of many prompts were not answered, and all others were.

    `errors` has what was wrong, by the prompt's place; `answers` is what would have come back, None in their places.
    """

    def __init__(self, answers: Sequence[Any], errors: Mapping[int, StepaheadError]) -> None:
        """Name the first of them in the text."""
        self.answers = list(answers)
        self.errors = dict(sorted(errors.items()))
        place, error = next(iter(self.errors.items()))
        count = "it alone" if len(self.errors) == 1 else f"{len(self.errors):,}"
        super().__init__(f"prompt {place}: {error} (of {len(self.answers):,} prompts {count} failed)")
