"""What a start is busy with, for whoever watches it."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from protocol.logs import TEXT, LogConfig, json_line
from protocol.progress_lines import ProgressLines

PROCESS = "launch"
"""Who writes these lines, whatever process they are about."""


class Progress:
    """Lines on standard error, each with the seconds since the start and the name of the process that it is about."""

    def __init__(self, stream: TextIO | None = None, logs: LogConfig = TEXT) -> None:
        """Start the clock; `stream` takes the place of standard error, and lines are as `logs` says."""
        self._started = time.monotonic()
        self._json = logs.json
        self._lines = ProgressLines(stream or sys.stderr, redraw=not self._json)

    def __call__(self, name: str, text: str) -> None:
        """Say what `name` is doing."""
        self._lines.say(name, self._line(name, text))

    def share(self, name: str, done: float, text: str) -> None:
        """Say how much of it `name` has done, from 0 to 1."""
        self._lines.show(name, done, self._line(name, text))

    def failed(self, text: str) -> None:
        """Say why it all comes to nothing."""
        self._lines.end()
        self._lines.say("", json_line(PROCESS, text, "error") if self._json else f"stepahead: {text}")

    def end(self) -> None:
        """Leave the terminal to what is said next."""
        self._lines.end()

    def _line(self, name: str, text: str) -> str:
        if self._json:
            return json_line(PROCESS, text, about=name)
        return f"[{time.monotonic() - self._started:6.1f} s] {name}: {text}"
