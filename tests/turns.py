"""Who runs beside whom where several processes run the tests: one that is marked `alone` runs while no other does."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """A process's place among those that share a folder; a process that dies gives its turn back.

    Whoever wants to be alone closes the gate and waits until the hall is empty. Nobody passes a closed gate, so that
    wait is no longer than the longest of the tests that run now.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder's two locks."""
        self._gate = (folder / "gate").open("w")
        self._hall = (folder / "hall").open("w")

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        """Wait until nobody is alone or wants to be; the others may come while this lasts."""
        with _held(self._gate.fileno(), fcntl.LOCK_EX):
            fcntl.flock(self._hall, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._hall, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody else is there; nobody comes while this lasts."""
        with _held(self._gate.fileno(), fcntl.LOCK_EX), _held(self._hall.fileno(), fcntl.LOCK_EX):
            yield

    def close(self) -> None:
        """Close both locks."""
        self._gate.close()
        self._hall.close()


@contextmanager
def _held(file: int, how: int) -> Iterator[None]:
    fcntl.flock(file, how)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # said, not left to the closing: a child that was forked may have a copy
