"""What a start is busy with, for whoever watches it."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from protocol.progress_lines import ProgressLines


class Progress:
    """Lines on standard error, each with the seconds since the start and the name of the process that it is about."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Start the clock; `stream` takes the place of standard error."""
        self._started = time.monotonic()
        self._lines = ProgressLines(stream or sys.stderr)

    def __call__(self, name: str, text: str) -> None:
        """Say what `name` is doing."""
        self._lines.say(name, self._line(name, text))

    def share(self, name: str, done: float, text: str) -> None:
        """Say how much of it `name` has done, from 0 to 1."""
        self._lines.show(name, done, self._line(name, text))

    def failed(self, text: str) -> None:
        """Say why it all comes to nothing."""
        self._lines.end()
        self._lines.say("", f"stepahead: {text}")

    def end(self) -> None:
        """Leave the terminal to what is said next."""
        self._lines.end()

    def _line(self, name: str, text: str) -> str:
        return f"[{time.monotonic() - self._started:6.1f} s] {name}: {text}"
