"""How much of each bin of time some intervals cover."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def coverage(start: NDArray[np.int64], end: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the time in each of the bins between `edges`, float64[edges - 1], that at least one interval covers.

    Intervals, int64[n] each, may come in any order and overlap.
    """
    if not len(start):
        return np.zeros(len(edges) - 1)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))  # of a stretch without a break
    last = np.concatenate((first[1:], [True]))
    begins, ends = start[first], end[last]
    # Between a stretch's begin and its end the covered time grows as time does, elsewhere it stands still.
    moments = np.column_stack((begins, ends)).ravel()
    covered = np.repeat(np.cumsum(ends - begins), 2)
    covered[::2] -= ends - begins
    return np.diff(np.interp(edges, moments, covered))
