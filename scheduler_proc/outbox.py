"""What clients have not been told yet of requests that are over."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.logprobs import Logprobs, Scores, joined, joined_scores
from protocol.messages import EXPLAINED, Deltas, Finish
from scheduler_proc.request import NEVER, Request

_NO_TOKENS = np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rest of a request that holds no slot: what its client has not been given."""

    request: int
    offset: int
    tokens: NDArray[np.uint32]
    finish: Finish
    cached: int  # tokens of the prompt
    error: str
    timing: tuple[float, ...]  # of one that ended, as Deltas has it
    logprobs: Logprobs | None = None  # of its tokens, if they are wanted
    scores: tuple[int, Scores] | None = None  # of its prompt: where the first of those tokens stands, and the news

    @property
    def listed(self) -> int:
        """How many log probabilities it has."""
        of_prompt = 0 if self.scores is None else len(self.scores[1].logprobs.token)
        return of_prompt + (0 if self.logprobs is None else len(self.logprobs.token))


MOST_PIECES = 1024
"""A message tells of so many ended requests at most, however many ended at once."""


MOST_LISTED = 2**20
"""And of so many log probabilities, unless one request alone has more: a message is one frame, which has a limit."""


class Outbox:
    """The last pieces of ended requests, by client. The others need none: cursors say what is new of them."""

    def __init__(self) -> None:
        """Begin empty."""
        self._pieces: defaultdict[int, list[Piece]] = defaultdict(list)

    def clients(self) -> set[int]:
        """Return who has something to be told."""
        return set(self._pieces)

    def ended(self, request: Request, error: str, now: float) -> None:
        """Note that a request, which holds no slot any more, has ended as its `finish` says."""
        since = request.arrived
        timing = (
            _since(request.first_planned, since),
            _since(request.first_token, since),
            _since(request.last_token, since),
            now - since,
        )
        logprobs = request.take_logprobs(len(request.unsent))
        self._pieces[request.client].append(
            Piece(
                request.ask.request,
                request.sent,
                request.unsent,
                request.finish,
                request.cached,
                error,
                timing,
                logprobs,
                request.take_scores(),
            )
        )

    def refused(self, client: int, request: int, error: str, finish: Finish = Finish.REFUSED) -> None:
        """Note that a request was never accepted, and why: REFUSED for ever, or BUSY for now."""
        timing = (NEVER, NEVER, NEVER, 0.0)
        self._pieces[client].append(Piece(request, 0, _NO_TOKENS, finish, 0, error, timing))

    def count(self, client: int) -> int:
        """How many pieces wait for a client."""
        return len(self._pieces.get(client, ()))

    def forget(self, client: int) -> None:
        """Drop what a vanished client will never read."""
        self._pieces.pop(client, None)

    def take(self, client: int) -> list[Piece]:
        """Return and forget the oldest pieces of a client: at most `MOST_PIECES`, and with at most `MOST_LISTED`."""
        pieces = self._pieces.pop(client, [])
        most, listed = min(len(pieces), MOST_PIECES), 0
        for number, piece in enumerate(pieces[:most]):
            listed += piece.listed
            if number and listed > MOST_LISTED:
                most = number
                break
        if len(pieces) > most:
            self._pieces[client] = pieces[most:]
        return pieces[:most]


def waiting_piece(request: Request) -> Piece:
    """Return what is new of a request that was preempted and waits, and count it as given."""
    logprobs = request.take_logprobs(len(request.unsent))
    piece = Piece(request.ask.request, request.sent, request.unsent, Finish.RUNNING, request.cached, "", (), logprobs)
    request.sent = len(request.output)
    return piece


def score_piece(request: Request, sent: int) -> Piece:
    """Return what is new of a prompt's scores, and count it as given; `sent` tokens of the output have been."""
    return Piece(
        request.ask.request, sent, _NO_TOKENS, Finish.RUNNING, request.cached, "", (), None, request.take_scores()
    )


def _since(moment: float, start: float) -> float:
    return moment - start if moment != NEVER else NEVER


def deltas_of(
    session: int,
    pieces: list[Piece],
    request: NDArray[np.uint64],
    offset: NDArray[np.uint32],
    count: NDArray[np.uint32],
    cached: NDArray[np.uint32],
    token: NDArray[np.uint32],
    listed: dict[int, Logprobs],
) -> Deltas:
    """Return the message for one client: `pieces` first, then one row per running request with news (the columns).

    `listed` are the log probabilities of those running requests that want them, by the number of the row.
    """
    known = {len(pieces) + row: logprobs for row, logprobs in listed.items()}
    known |= {row: piece.logprobs for row, piece in enumerate(pieces) if piece.logprobs is not None}
    finish = np.zeros(len(pieces) + len(request), np.uint8)
    timing: tuple[float, ...] = ()
    errors: tuple[str, ...] = ()
    if pieces:
        finish[: len(pieces)] = [piece.finish for piece in pieces]
        timing = tuple(moment for piece in pieces for moment in piece.timing)
        errors = tuple(piece.error for piece in pieces if piece.finish in EXPLAINED)
        request = np.concatenate((np.array([piece.request for piece in pieces], np.uint64), request))
        offset = np.concatenate((np.array([piece.offset for piece in pieces], np.uint32), offset))
        count = np.concatenate((np.array([len(piece.tokens) for piece in pieces], np.uint32), count))
        cached = np.concatenate((np.array([piece.cached for piece in pieces], np.uint32), cached))
        token = np.concatenate((*[piece.tokens for piece in pieces], token))
    columns = _logprob_columns(known, count) if known else (None, None, None)
    news = [(row, *piece.scores) for row, piece in enumerate(pieces) if piece.scores is not None]
    scores = joined_scores([each for _, _, each in news]) if news else None
    return Deltas(
        session=session,
        request=request,
        offset=offset,
        count=count,
        finish=finish,
        cached=cached,
        token=token,
        timing=np.array(timing, np.float32),
        errors=errors,
        listed=columns[0],
        listed_token=columns[1],
        logprob=columns[2],
        score_row=np.array([(row, at, len(each)) for row, at, each in news], np.uint32).reshape(-1) if news else None,
        scored=None if scores is None else scores.logprobs.count,
        scored_token=None if scores is None else scores.logprobs.token,
        scored_logprob=None if scores is None else scores.logprobs.logprob,
        scored_rank=None if scores is None else scores.rank,
    )


def _logprob_columns(
    known: dict[int, Logprobs], count: NDArray[np.uint32]
) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.float32]]:
    """Return the columns of `Deltas` for rows of `count` tokens, of which those in `known` have log probabilities."""
    ends = np.cumsum(count, dtype=np.int64)
    listed = np.zeros(int(ends[-1]), np.uint8)
    for row, logprobs in known.items():
        listed[ends[row] - len(logprobs) : ends[row]] = logprobs.count
    whole = joined([known[row] for row in sorted(known)])
    return listed, whole.token, whole.logprob
