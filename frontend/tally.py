"""What a frontend counts of the answers that pass through it, for those who watch servers."""

from __future__ import annotations

import functools
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, ParamSpec

from frontend.delta_rows import Timing
from frontend.stream import Stream
from protocol.drop_log import DropLog
from protocol.messages import Finish

BOUNDS = tuple(float(f"{digits}e{power}") for power in range(-3, 3) for digits in (1, 2.5, 5))
"""Upper bounds of a histogram's buckets, in seconds: 1 ms to 500 s, three to a power of ten."""

TOKEN_BOUNDS = tuple(float(f"{digits}e{power}") for power in range(6) for digits in (1, 2, 5))
"""The same for how many tokens something has: 1 to 500,000."""

COMPLETED = (Finish.STOP, Finish.LENGTH)

_log = logging.getLogger("stepahead.frontend")
_Told = ParamSpec("_Told")


class Histogram:
    """How often something, a duration say, was how large."""

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        """Begin empty; a bucket has what is above one bound and at most the next."""
        self.bounds = bounds
        self.total = 0.0  # of all, in seconds or tokens
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def cumulative(self) -> list[int]:
        """How many values were at most as large as each of the bounds, and in the end how many there were."""
        sums, total = [], 0
        for count in self._counts:
            total += count
            sums.append(total)
        return sums

    @property
    def numbers(self) -> list[float]:
        """All that it knows."""
        return [self.total, *self._counts]

    def take(self, numbers: Iterator[float]) -> None:
        """Know what another one's `numbers` say; takes as many of them as there are."""
        self.total = next(numbers)
        self._counts = [int(next(numbers)) for _ in self._counts]


def _harmless(
    count: Callable[Concatenate[Tally, _Told], None],
) -> Callable[Concatenate[Tally, _Told], None]:
    """Have what fails in a method be a line in the log: no answer ends for a number's sake."""

    @functools.wraps(count)
    def counted(self: Tally, /, *args: _Told.args, **kwargs: _Told.kwargs) -> None:
        try:
            count(self, *args, **kwargs)
        except Exception as error:
            self._lost.add(repr(error))

    return counted


class Tally:
    """Tokens, ends and durations of all answers since the start. All of it only goes up.

    A request that was aborted counts as far as it came: its tokens, its first token, its end as what it was. What is
    counted once for a whole answer is so of those that were completed.

        read ──────── first token ─────────────────────────── last token        by this process's clock
        └─ first_token ─┘└────────── between_tokens ──────────────┘
        there ── first planned ── first token ─────────────── last token        by its scheduler's
        └─ queue ─┘└── prefill ───┘└──────────── decode ──────────┘
                   └───────────────── inference ──────────────────┘
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.prompt_tokens = 0  # of accepted requests, however many answers each has
        self.generation_tokens = 0  # those that belong to an answer: none from behind its end
        self.pieces = self.crowded_pieces = 0  # of streamed answers; those of several tokens, which came late
        self.ended: Counter[Finish] = Counter()
        self.first_token = Histogram()  # from a request's being read to its answer's first token
        self.between_tokens = Histogram()  # tokens that came together have come one by one at an even pace
        self.per_token = Histogram()  # of an answer with two tokens at least: the mean of those
        self.whole = Histogram()  # from a request's being read to the last token of an answer that was completed
        self.queue, self.prefill, self.decode, self.inference = Histogram(), Histogram(), Histogram(), Histogram()
        self.prompt_lengths, self.answer_lengths = Histogram(TOKEN_BOUNDS), Histogram(TOKEN_BOUNDS)
        self._lost = DropLog(_log, "a number for /metrics")

    @_harmless
    def prompt(self, tokens: int) -> None:
        """Note that a request was accepted, whose prompt has so many tokens."""
        self.prompt_tokens += tokens

    @_harmless
    def tokens(self, stream: Stream, count: int, now: float) -> None:
        """Note that `count` tokens have just come, which the stream has taken."""
        if not count:
            return
        gap = now - stream.newest
        stream.newest = now
        self.generation_tokens += count
        if len(stream.output) == count:
            stream.first = now
            self.first_token.observe(gap)
        else:
            self.between_tokens.observe(gap / count, count)

    @_harmless
    def piece(self, tokens: int) -> None:
        """Note that a piece of a streamed answer is on its way, of so many tokens; one without any does not count."""
        self.pieces += tokens > 0
        self.crowded_pieces += tokens > 1

    @_harmless
    def end(self, stream: Stream) -> None:
        """Note that a stream has ended."""
        self.ended[stream.finish] += 1
        if stream.finish in COMPLETED and stream.output:
            self.whole.observe(stream.newest - stream.arrived)
            self.prompt_lengths.observe(len(stream.submit.prompt))
            self.answer_lengths.observe(len(stream.output))
            if (between := len(stream.output) - 1) > 0:
                self.per_token.observe((stream.newest - stream.first) / between)

    @_harmless
    def unread(self, finish: Finish, answers: int) -> None:
        """Note that so many answers have ended before their prompt was read."""
        self.ended[finish] += answers

    @_harmless
    def phases(self, stream: Stream, timing: Timing) -> None:
        """Note what its scheduler says of a stream that has ended, unless another one had begun it."""
        if stream.finish not in COMPLETED or stream.resubmitted or timing.first_token < 0:
            return
        self.queue.observe(timing.planned)
        self.prefill.observe(timing.first_token - timing.planned)
        self.decode.observe(timing.last_token - timing.first_token)
        self.inference.observe(timing.last_token - timing.planned)

    @property
    def numbers(self) -> list[float]:
        """All that is counted, in an order that is the same for every tally."""
        found: list[float] = []
        for kept in vars(self).values():
            if isinstance(kept, int):
                found.append(kept)
            elif isinstance(kept, Counter):
                found += [kept[finish] for finish in Finish]
            elif isinstance(kept, Histogram):
                found += kept.numbers
        return found

    def take(self, numbers: Iterator[float]) -> None:
        """Have counted what the `numbers` of another tally, or sums of several, say."""
        for name, kept in vars(self).items():
            if isinstance(kept, int):
                setattr(self, name, int(next(numbers)))
            elif isinstance(kept, Counter):
                kept.update({finish: int(next(numbers)) for finish in Finish})
            elif isinstance(kept, Histogram):
                kept.take(numbers)
