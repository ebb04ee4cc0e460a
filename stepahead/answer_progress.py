"""How far the answers to many prompts are, for whoever waits for them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from client.gathering import Gathering
from protocol.progress_lines import ProgressLines


class AnswerProgress:
    """A line on standard error for each call under way, and one that stays when it has gone well.

    On a terminal the former is redrawn; elsewhere one comes now and then.
    """

    def __init__(self) -> None:
        """Begin with no call."""
        self._stream = sys.stderr
        self._lines = ProgressLines(self._stream)
        self._calls = count(1)
        self._lock = threading.Lock()  # each thread draws its own calls, and all share the screen

    @contextmanager
    def of(self, gathering: Gathering) -> Iterator[Look]:
        """Begin a call; what is returned draws how far it is, whenever it is called."""
        with self._lock:
            if sys.stderr is not self._stream:  # a notebook, or a test, has one for each cell
                self._stream = sys.stderr
                self._lines = ProgressLines(self._stream)
        look = Look(self._lines, self._lock, f"call {next(self._calls)}", gathering)
        try:
            yield look
        except BaseException:
            look.end()
            raise
        look.over()


class Look:
    """Draws how far one call is."""

    def __init__(self, lines: ProgressLines, lock: threading.Lock, call: str, gathering: Gathering) -> None:
        """Start the clock."""
        self._lines = lines
        self._lock = lock
        self._call = call
        self._gathering = gathering
        self._began = time.monotonic()

    def __call__(self) -> None:
        """Draw."""
        it = self._gathering
        seconds = time.monotonic() - self._began
        left = f", {_minutes(seconds * (it.prompts - it.done) / it.done)} left" if it.done else ""
        with self._lock:
            self._lines.show(self._call, it.done / it.prompts, f"{self._so_far(seconds)}{left}")

    def end(self) -> None:
        """Take the line off the screen; other calls draw theirs again."""
        with self._lock:
            self._lines.end()

    def over(self) -> None:
        """Leave a line about the whole."""
        seconds = time.monotonic() - self._began
        with self._lock:
            self._lines.say(self._call, f"{self._so_far(seconds)} in {_minutes(seconds)}")

    def _so_far(self, seconds: float) -> str:
        it = self._gathering
        rate = it.tokens / seconds if seconds else 0.0
        return f"{it.done:,} of {it.prompts:,} prompts answered, {rate:,.0f} tokens/s"


def _minutes(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
