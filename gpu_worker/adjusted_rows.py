"""The owner of the rows of per-token state, which only slots whose logits are adjusted have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NO_ROW = -1


class AdjustedRows:
    """Rows 0, 1, … given out lowest first, so that the device's pool need be no larger than `most`.

    A slot keeps its row until another request begins in it. The order of plans makes that safe: what a row's old owner
    still writes comes before its new owner's beginning.
    """

    def __init__(self, slots: int) -> None:
        """Begin with no row given out."""
        self._row = np.full(slots, NO_ROW, np.int32)  # of each slot
        self._worded = np.zeros(slots, bool)  # whether it has bad words of several tokens
        self._free: list[int] = []
        self.most = 0  # so many rows have ever been in use at once

    def begin(
        self, slots: NDArray[np.uint32], adjusted: NDArray[np.uint32], worded: NDArray[np.uint32]
    ) -> NDArray[np.int32]:
        """Take back the rows of all `slots`, in which requests begin; return int32[n], a row for each of `adjusted`.

        Those of them in `worded` have bad words of several tokens.
        """
        had = self._row[slots]
        self._free += had[had != NO_ROW].tolist()
        self._free.sort(reverse=True)
        self._row[slots] = NO_ROW
        self._worded[slots] = False
        self._worded[worded] = True
        for slot in adjusted.tolist():
            if not self._free:
                self._free.append(self.most)
                self.most += 1
            self._row[slot] = self._free.pop()
        return self._row[adjusted]

    def of(self, slots: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the row of each of some slots, int32[n], `NO_ROW` where it has none."""
        return self._row[slots]

    def any_worded(self, slots: NDArray[np.uint32]) -> bool:
        """Whether any of some slots has bad words of several tokens."""
        return bool(self._worded[slots].any())

    def check(self) -> None:
        """Assert that every row is either free or one slot's."""
        held = self._row[self._row != NO_ROW].tolist()
        assert sorted(held + self._free) == list(range(self.most)), "a row is lost, or owned twice"
