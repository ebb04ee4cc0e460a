"""What one message of a scheduler says, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from protocol.messages import Deltas, Finish


class DeltaRow(NamedTuple):
    """What is new in one request: `tokens` that begin at `offset` of its output, and its end if it came."""

    request: int
    offset: int
    tokens: list[int]
    finish: Finish
    error: str


def rows_of(deltas: Deltas) -> Iterator[DeltaRow]:
    """Yield the rows in their order."""
    tokens, at, errors = deltas.token.tolist(), 0, iter(deltas.errors)
    for request, offset, length, ended in zip(
        deltas.request.tolist(), deltas.offset.tolist(), deltas.count.tolist(), deltas.finish.tolist(), strict=True
    ):
        finish = Finish(ended)
        error = next(errors) if finish in (Finish.ERROR, Finish.REFUSED) else ""
        yield DeltaRow(request, offset, tokens[at : at + length], finish, error)
        at += length
