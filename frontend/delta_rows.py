"""What one message of a scheduler says, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from protocol.logprobs import Logprobs, Scores
from protocol.messages import EXPLAINED, Deltas, Finish

_FINISHES = tuple(Finish)  # by their numbers; to look one up is ten times as fast as to make it


class Timing(NamedTuple):
    """When a scheduler did what of a request, in seconds since it came there; -1 for what never happened.

    They are in order: all are of one clock that never goes back.
    """

    planned: float  # first put into a step
    first_token: float
    last_token: float
    end: float


class DeltaRow(NamedTuple):
    """What is new in one request: `tokens` that begin at `offset` of its output, and its end if it came.

    `cached` tokens of its prompt were not computed. One that ended has a `timing`.
    """

    request: int
    offset: int
    tokens: list[int]
    finish: Finish
    error: str
    cached: int = 0
    logprobs: Logprobs | None = None  # of its tokens, if it has some
    scores: tuple[int, Scores] | None = None  # of its prompt's tokens from this one on, if there are new ones
    timing: Timing | None = None


def rows_of(deltas: Deltas) -> Iterator[DeltaRow]:
    """Yield the rows in their order."""
    logprobs = deltas.logprobs
    listed = [] if logprobs is None else logprobs.count.tolist()
    scores = _scores(deltas)
    tokens, at, errors = deltas.token.tolist(), 0, iter(deltas.errors)
    moments = iter(deltas.timing.tolist())
    columns = (deltas.request, deltas.offset, deltas.count, deltas.finish, deltas.cached)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, (request, offset, length, ended, cached) in enumerate(rows):
        finish = _FINISHES[ended]
        error = next(errors) if finish in EXPLAINED else ""
        timing = None if finish is Finish.RUNNING else Timing(*islice(moments, len(Timing._fields)))
        part = None
        if logprobs is not None and any(listed[at : at + length]):
            part = logprobs.part(at, at + length)
        told = scores.get(row)
        yield DeltaRow(request, offset, tokens[at : at + length], finish, error, cached, part, told, timing)
        at += length


def _scores(deltas: Deltas) -> dict[int, tuple[int, Scores]]:
    """Return what is new of prompts by row: where the first of the tokens stands, and what is said of them."""
    scores, found, at = deltas.scores, {}, 0
    if scores is None or deltas.score_row is None:
        return {}
    for row, first, count in deltas.score_row.reshape(-1, 3).tolist():
        found[row] = (first, scores.part(at, at + count))
        at += count
    return found
