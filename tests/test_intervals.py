"""Sets of moments: what is in one of several stretches, how long, and what lies between."""

from __future__ import annotations

import numpy as np
import pytest

from timeline.intervals import Intervals, joined, union


def intervals(*stretches: tuple[int, int]) -> Intervals:
    start, end = np.array(stretches, np.int64).reshape(-1, 2).T
    return union(start, end)


def pairs(of: Intervals) -> list[tuple[int, int]]:
    return list(zip(of.start.tolist(), of.end.tolist(), strict=True))


@pytest.mark.parametrize(
    ("stretches", "expected"),
    [
        ([], []),
        ([(3, 3)], []),
        ([(5, 7), (1, 2)], [(1, 2), (5, 7)]),
        ([(1, 3), (3, 4)], [(1, 4)]),
        ([(1, 9), (2, 3), (4, 5), (8, 10), (12, 13)], [(1, 10), (12, 13)]),
        ([(1, 2), (4, 4), (6, 7)], [(1, 2), (6, 7)]),
    ],
)
def test_stretches_that_touch_become_one(stretches: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    found = intervals(*stretches)
    assert pairs(found) == expected
    assert len(found) == len(expected)
    assert found.total == sum(end - start for start, end in expected)


def test_gaps_lie_between() -> None:
    assert pairs(intervals((1, 2), (5, 7), (7, 8), (20, 21)).gaps()) == [(2, 5), (8, 20)]
    assert pairs(intervals((1, 2)).gaps()) == pairs(intervals().gaps()) == []


def test_what_is_covered_of_any_stretch_is_known() -> None:
    covered = intervals((10, 20), (30, 31))
    start, end = np.array([[0, 10], [0, 12], [10, 20], [15, 40], [20, 30], [19, 31], [50, 60], [31, 31]]).T
    assert covered.within(start, end).tolist() == [0, 2, 10, 6, 0, 2, 0, 0]
    assert intervals().within(start, end).tolist() == [0] * 8


def test_two_sets_overlap_and_join() -> None:
    one, other = intervals((0, 5), (10, 15)), intervals((4, 11), (20, 21))
    assert one.overlap(other) == other.overlap(one) == 2
    assert pairs(joined((one, other))) == [(0, 15), (20, 21)]
    assert pairs(joined(())) == []


def test_what_two_sets_share_and_what_they_do_not() -> None:
    one, other = intervals((0, 5), (10, 15), (20, 30)), intervals((4, 11), (22, 23), (30, 40))
    assert pairs(one.common(other)) == pairs(other.common(one)) == [(4, 5), (10, 11), (22, 23)]
    assert pairs(one.without(other)) == [(0, 4), (11, 15), (20, 22), (23, 30)]
    assert pairs(one.without(intervals())) == pairs(one)
    assert pairs(one.without(one)) == pairs(intervals().without(one)) == pairs(intervals().common(one)) == []
