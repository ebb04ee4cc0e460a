"""Stop strings: end a stream where one of them appears, and let no piece of it out before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy

from frontend.text_error import TextError, require_unicode

MOST_CHARACTERS = 2**14
"""All stop strings of a stream together: their tables are built, and walked, one character at a time."""


class StopStrings:
    """Watches one stream. How its text is cut into pieces changes nothing.

    The stop string that is complete first wins; of several that end at the same character, the longest. Held back is
    the longest end of the text that could still become a stop string, and no more. Each stop string is followed by a
    Knuth-Morris-Pratt automaton, so the work is linear in the text, and the state is one number for each: the text
    held back is itself the beginning of a stop string and needs no copy.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Watch for `stops`, possibly none; `TextError` if one is empty or no valid text, or if they are too long.

        With `include_stop` the stop string is delivered as the end of the text instead of being dropped.
        """
        length = sum(map(len, stops))
        if length > MOST_CHARACTERS:
            raise TextError(
                f"the stop strings have {length} characters, at most {MOST_CHARACTERS} are allowed", at_fault="stop"
            )
        for stop in stops:
            if not stop:
                raise TextError("a stop string is empty", at_fault="stop")
            require_unicode(stop, "a stop string", at_fault="stop")
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._borders = [_borders(stop) for stop in self._stops]
        self._depths = [0] * len(self._stops)  # how much of each stop string the text ends with
        self.matched: str | None = None  # the stop string that ended the stream

    def again(self) -> StopStrings:
        """Return one that watches another stream for the same: what was built for them is shared."""
        other = copy(self)
        other._depths = [0] * len(self._stops)
        other.matched = None
        return other

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return the text that is safe to deliver, and whether the stream has ended.

        Behind the end nothing is returned any more.
        """
        if not self._stops:  # as most streams; this is for every token
            return text, False
        if self.matched is not None:
            return "", True
        stop, held = self._longest()
        end, self.matched = self._scan(text)
        if self.matched is None:
            _, still_held = self._longest()
            return _cut(stop, held, text, held + len(text) - still_held), False
        dropped = 0 if self._include_stop else len(self.matched)
        return _cut(stop, held, text, held + end - dropped), True

    def finish(self) -> str:
        """Return what was held back: the stream is over, and it was no stop string."""
        if self.matched is not None:
            return ""
        stop, held = self._longest()
        self._depths = [0] * len(self._stops)
        return stop[:held]

    def _longest(self) -> tuple[str, int]:
        """Return the stop string whose beginning is held back, and how many of its characters."""
        depth, i = max(((depth, i) for i, depth in enumerate(self._depths)), default=(0, 0))
        return (self._stops[i], depth) if depth else ("", 0)

    def _scan(self, text: str) -> tuple[int, str | None]:
        """Move every automaton over `text`, up to the end of the first match; return where that is, and the match."""
        end, matched = len(text), None
        for i, stop in enumerate(self._stops):
            # Another stop string ended the text at `end`: one that ends there too, and is longer, still takes over.
            depth, reached = self._advance(i, text, end)
            self._depths[i] = depth
            if depth == len(stop) and (matched is None or reached < end or depth > len(matched)):
                end, matched = reached, stop
        return end, matched

    def _advance(self, i: int, text: str, end: int) -> tuple[int, int]:
        stop, borders, depth = self._stops[i], self._borders[i], self._depths[i]
        at = 0
        while at < end:
            if not depth:
                at = text.find(stop[0], at, end)  # most text begins no stop string: skip it at the speed of C
                if at < 0:
                    return 0, end
            while depth and text[at] != stop[depth]:
                depth = borders[depth - 1]
            depth += text[at] == stop[depth]
            at += 1
            if depth == len(stop):
                break
        return depth, at


def _borders(stop: str) -> array[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its end (Knuth-Morris-Pratt)."""
    borders = array("I", [0]) * len(stop)
    depth = 0
    for at in range(1, len(stop)):
        while depth and stop[at] != stop[depth]:
            depth = borders[depth - 1]
        depth += stop[at] == stop[depth]
        borders[at] = depth
    return borders


def _cut(stop: str, held: int, text: str, length: int) -> str:
    """Return the first `length` characters of `stop[:held] + text`, copying no more than these."""
    return stop[: min(held, length)] + text[: max(0, length - held)]
