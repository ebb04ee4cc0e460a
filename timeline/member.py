"""A process that the collector knows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from protocol.messages import ClockAsk, Joined

LATEST = 2**62
"""What a clock may show, in nanoseconds, 146 years: it is set off against another one in 64 bits."""

STRANGER = 1
"""The session in a collector's Pong to somebody who has not joined, or was forgotten: it must say who it is."""

ASK_NANOSECONDS = 1_000_000_000
"""How often a foreign clock is asked for: an answer wakes the collector, so it must not be what asks again."""

BEST_ANSWERS_COUNT_FOR = 10
"""After so many answers, or a pause in which so many would have come, a clock is measured anew: clocks drift apart."""


@dataclass(slots=True)
class Member:
    """What it is, and how its clock stands to the collector's: theirs + offset = ours, in nanoseconds.

    An answer that took the time r, there and back, tells the offset with an error of at most r/2, wherever on the way
    the time was spent; so the fastest answer counts (Cristian's algorithm).
    """

    number: int
    joined: Joined
    same_clock: bool
    silent: int = 0  # for how long, as the collector lived it
    offset: int = 0
    offset_error: int = 0
    device_error: int = 0  # of the mapping from its device's clock to its own
    _fastest: float = inf
    _answers: int = 0
    _asked: float = -inf

    @property
    def clock_error(self) -> int:
        """By how much its spans may be off, at most."""
        return self.offset_error + self.device_error

    @property
    def clock_known(self) -> bool:
        """Whether its times mean anything to us."""
        return self.same_clock or self._fastest < inf

    def ask_clock(self, clock: int) -> ClockAsk | None:
        """Return what asks for its clock, if it is time to at `clock` of ours."""
        pause = clock - self._asked
        if self.same_clock or pause < ASK_NANOSECONDS:
            return None
        if pause > BEST_ANSWERS_COUNT_FOR * ASK_NANOSECONDS:
            self._fastest = inf
        self._asked = clock
        return ClockAsk(clock)

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
