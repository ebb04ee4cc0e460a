"""What a frontend counts of the answers that pass through it, for those who watch servers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from frontend.stream import Stream
from protocol.messages import Finish

BOUNDS = tuple(float(f"{digits}e{power}") for power in range(-3, 3) for digits in (1, 2.5, 5))
"""Upper bounds of a histogram's buckets, in seconds: 1 ms to 500 s, three to a power of ten."""


class Histogram:
    """How often durations were how long."""

    def __init__(self) -> None:
        """Begin empty."""
        self.total = 0.0  # seconds, of all
        self._counts = [0] * (len(BOUNDS) + 1)

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, so many times."""
        self._counts[bisect_left(BOUNDS, seconds)] += times
        self.total += seconds * times

    @property
    def cumulative(self) -> list[int]:
        """How many durations were at most as long as each of `BOUNDS`, and in the end how many there were."""
        sums, total = [], 0
        for count in self._counts:
            total += count
            sums.append(total)
        return sums


class Tally:
    """Tokens, ends and durations of all answers since the start. All of it only goes up.

    A request that was aborted counts as far as it came: its tokens, its first token, its end as what it was.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.prompt_tokens = 0  # of accepted requests, however many answers each has
        self.generation_tokens = 0  # those that belong to an answer: none from behind its end
        self.ended: Counter[Finish] = Counter()
        self.first_token = Histogram()  # from a request's being read to its answer's first token
        self.between_tokens = Histogram()  # tokens that came together have come one by one at an even pace
        self.whole = Histogram()  # from a request's being read to the last token of an answer that was completed

    def tokens(self, stream: Stream, count: int, now: float) -> None:
        """Note that `count` tokens have just come, which the stream has taken."""
        if not count:
            return
        gap = now - stream.newest
        stream.newest = now
        self.generation_tokens += count
        if len(stream.output) == count:
            self.first_token.observe(gap)
        else:
            self.between_tokens.observe(gap / count, count)

    def end(self, stream: Stream) -> None:
        """Note that a stream has ended."""
        self.ended[stream.finish] += 1
        if stream.finish in (Finish.STOP, Finish.LENGTH) and stream.output:
            self.whole.observe(stream.newest - stream.arrived)
