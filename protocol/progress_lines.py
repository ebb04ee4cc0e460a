"""Lines of progress on a stream: those that stay, and those that a terminal redraws while something goes on."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import TextIO

LOG_SECONDS = 5.0
"""Where nothing can be redrawn, as in a log, a line comes no more often than this."""

_BAR = 24
_START_OF_LINE, _CLEAR_TO_END = "\r", "\x1b[K"


class ProgressLines:
    """Writes for several who are busy at once: each has at most one line that is not over yet.

    On a terminal these share the last line, redrawn with every news; elsewhere news that come too soon are dropped.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, redraw: bool = True) -> None:
        """Write to `stream`, which is asked once whether it is a terminal; without `redraw` it is taken for none."""
        self._stream = stream
        self._clock = clock
        self._terminal = redraw and stream.isatty()
        self._busy: dict[str, str] = {}  # who -> what its line says
        self._logged: dict[str, float] = {}  # who -> when it last had a line in a log

    def say(self, who: str, line: str) -> None:
        """Write a line that stays; whatever `who` was busy with is over."""
        clear = self._clear()
        self._logged.pop(who, None)
        self._busy.pop(who, None)
        self._write(f"{clear}{line}\n{self._drawn()}")

    def show(self, who: str, share: float, line: str) -> None:
        """Say that `who` has done `share`, from 0 to 1, of something; the next news of it take this one's place."""
        if self._terminal:
            done = round(_BAR * min(max(share, 0.0), 1.0))
            self._busy[who] = f"{line} [{'#' * done}{'.' * (_BAR - done)}]"
            self._write(f"{_START_OF_LINE}{self._drawn()}{_CLEAR_TO_END}")
            return
        now = self._clock()
        if now - self._logged.setdefault(who, now) >= LOG_SECONDS:
            self._logged[who] = now
            self._write(f"{line}\n")

    def end(self) -> None:
        """Take what is not over off the screen: somebody else writes there from now on."""
        self._write(self._clear())
        self._busy.clear()

    def _clear(self) -> str:
        return f"{_START_OF_LINE}{_CLEAR_TO_END}" if self._busy else ""

    def _drawn(self) -> str:
        # A line that is wider than the terminal would wrap, and the next drawing begin in the wrong row.
        return " | ".join(self._busy.values())[: max(1, shutil.get_terminal_size().columns - 1)]

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: nobody is there to be told
            self._stream.write(text)
            self._stream.flush()
