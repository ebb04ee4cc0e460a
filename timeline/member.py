"""A process that the collector knows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from protocol.messages import Joined

LATEST = 2**62
"""What a clock may show, in nanoseconds, 146 years: it is set off against another one in 64 bits."""

BEST_ANSWERS_COUNT_FOR = 600
"""After so many answers a clock is measured anew: two clocks drift apart."""


@dataclass(slots=True)
class Member:
    """What it is, and how its clock stands to the collector's: theirs + offset = ours, in nanoseconds.

    An answer that took the time r, there and back, tells the offset with an error of at most r/2, wherever on the way
    the time was spent; so the fastest answer counts (Cristian's algorithm).
    """

    number: int
    joined: Joined
    heard: int
    same_clock: bool
    asked: float = -inf  # when it was last asked for its clock
    offset: int = 0
    offset_error: int = 0
    device_error: int = 0  # of the mapping from its device's clock to its own
    _fastest: float = inf
    _answers: int = 0

    @property
    def clock_error(self) -> int:
        """By how much its spans may be off, at most."""
        return self.offset_error + self.device_error

    def clock_told(self, asked: int, theirs: int, answered: int) -> None:
        """Take the answer to a question that was `asked` and `answered` by our clock, and in between by `theirs`."""
        took = answered - asked
        self._answers += 1
        if self.same_clock or took < 0 or theirs > LATEST:
            return
        if took <= self._fastest or self._answers >= BEST_ANSWERS_COUNT_FOR:
            self._fastest = took
            self._answers = 0
            self.offset = (asked + answered) // 2 - theirs
            self.offset_error = (took + 1) // 2
