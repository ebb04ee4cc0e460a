"""How much of each bin is covered: against counting moment by moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timeline.coverage import coverage

INTERVALS = st.lists(st.tuples(st.integers(-20, 120), st.integers(0, 50)), max_size=12)


@given(INTERVALS, st.integers(1, 30), st.integers(1, 6))
def test_coverage_is_what_counting_gives(intervals: list[tuple[int, int]], width: int, bins: int) -> None:
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = np.array([begin + length for begin, length in intervals], np.int64)
    edges = np.arange(bins + 1, dtype=np.int64) * width
    covered = [any(begin <= moment < begin + length for begin, length in intervals) for moment in range(bins * width)]
    counted = np.array(covered).reshape(bins, width).sum(axis=1)
    np.testing.assert_allclose(coverage(start, end, edges), counted)
