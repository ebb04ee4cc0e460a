"""How much of one kind of work is done before all others have their turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def for_a_turn(most: int, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Yield `most` times at most, and no more once `seconds` are over; once at least, so that work goes on."""
    end = monotonic() + seconds
    for done in range(most):
        if done and monotonic() >= end:
            return
        yield
