"""Where the rows of a run stand in a picture; all lengths are points."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.rows import Row
from timeline.strip import Strip
from timeline.trace import COMPUTE, HOST

HEADING = 38.0  # a run's name, and its figures
HOST_HEIGHT = 24.0
COMPUTE_HEIGHT = 30.0
COPY_HEIGHT = 8.0
STRIP_HEIGHT = 13.0
GAP = 4.0
PROCESS_GAP = 9.0
AXIS = 34.0  # its ticks, and what they are


@dataclass(frozen=True, slots=True)
class Placed:
    """A row, where it begins and how high it is."""

    row: Row
    top: float
    height: float

    @property
    def bottom(self) -> float:
        """Return where it ends."""
        return self.top + self.height


def height_of(rows: list[Row]) -> float:
    """Return how much room a run with these rows takes, heading and axis included."""
    placed = place(rows, 0.0)
    return (placed[-1].bottom if placed else HEADING) + AXIS


def place(rows: list[Row], top: float) -> list[Placed]:
    """Return the rows of a run under each other, below its heading at `top`."""
    placed: list[Placed] = []
    at = top + HEADING
    for row in rows:
        if placed:
            at += PROCESS_GAP if row.opens else GAP
        placed.append(Placed(row, at, _row_height(row)))
        at = placed[-1].bottom
    return placed


def _row_height(row: Row) -> float:
    if isinstance(row.shows, Strip):
        return STRIP_HEIGHT
    return {HOST: HOST_HEIGHT, COMPUTE: COMPUTE_HEIGHT}.get(row.shows.tid, COPY_HEIGHT)
