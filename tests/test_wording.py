"""Numbers are written as people read them."""

from __future__ import annotations

import pytest

from timeline.wording import duration, natural, number, percent, points, size, table, times


@pytest.mark.parametrize(
    ("ns", "written"),
    [(None, "–"), (0, "0"), (7, "7.00 ns"), (999, "999 ns"), (999.7, "1.00 µs"), (81_234, "81.2 µs"),
     (9_996, "10.0 µs"), (999_400, "999 µs"), (999_600, "1.00 ms"),
     (123_456, "123 µs"), (8_100_000, "8.10 ms"), (12_340_000_000, "12.3 s"), (3_600_000_000_000, "3,600 s")],
)  # fmt: skip
def test_a_duration_has_three_digits_and_the_unit_that_suits_it(ns: float | None, written: str) -> None:
    assert duration(ns) == written


@pytest.mark.parametrize(
    ("count", "written"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (45_123, "45.1 KB"), (999_400, "999 KB"), (999_600, "1.00 MB"),
     (390_000_000, "390 MB"), (2**40, "1,100 GB")],
)  # fmt: skip
def test_a_size_has_the_unit_that_suits_it(count: int, written: str) -> None:
    assert size(count) == written


def test_names_are_in_the_order_in_which_people_count() -> None:
    names = ["worker 10", "frontend", "worker 2 #2", "7", "worker 2", "worker"]
    assert sorted(names, key=natural) == ["7", "frontend", "worker", "worker 2", "worker 2 #2", "worker 10"]


@pytest.mark.parametrize(
    ("share", "written"),
    [(None, "–"), (0, "0 %"), (1.0, "100 %"), (0.1234, "12.3 %"), (0.994, "99.40 %"), (0.0052, "0.52 %"),
     (1e-6, "< 0.01 %"), (0.999999, "> 99.99 %")],
)  # fmt: skip
def test_a_share_is_all_or_nothing_only_if_it_is(share: float | None, written: str) -> None:
    assert percent(share) == written


@pytest.mark.parametrize(
    ("ratio", "written"),
    [(None, "–"), (1, "1.00×"), (1.0042, "1.0042×"), (1.282, "1.28×"), (0.5, "0.50×"), (0.0049, "0.0049×"), (0, "0"),
     (12_345.6, "12,345.60×")],
)  # fmt: skip
def test_ratios_near_one_or_none_have_more_digits(ratio: float | None, written: str) -> None:
    assert times(ratio) == written


def test_differences_have_a_sign() -> None:
    assert [points(each) for each in (None, 0.0, 0.197, -0.0004)] == ["–", "0", "+19.7 pp", "−0.04 pp"]


def test_counts_are_exact_and_rates_are_rounded() -> None:
    assert [number(each) for each in (None, 5, 1234567, 4285.71, 3.14159)] == ["–", "5", "1,234,567", "4,286", "3.14"]


def test_a_table_is_markdown_and_aligned() -> None:
    assert table(["", "time"], [["a|b", "1 s"], ["long name", "12.5 ms"]]).splitlines() == [
        "|           |    time |",
        "| --------- | ------: |",
        r"| a\|b      |     1 s |",
        "| long name | 12.5 ms |",
    ]
