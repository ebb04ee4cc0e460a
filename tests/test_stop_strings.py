"""Stop strings never leak, never swallow text, and cost the same however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frontend import stop_strings
from frontend.stop_strings import MOST_CHARACTERS, StopStrings
from frontend.text_error import TextError
from tests.line_counter import lines_executed


def stream(watcher: StopStrings, pieces: list[str]) -> tuple[str, bool]:
    """Push all pieces, then finish; return the whole text and whether it was stopped."""
    out, stopped = [], False
    for piece in pieces:
        text, stopped = watcher.push(piece)
        out.append(text)
    return "".join(out) + watcher.finish(), stopped


def expected(text: str, stops: list[str], include_stop: bool = False) -> tuple[str, bool]:
    """Say the same by looking at every prefix of the text."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if include_stop else end - max(map(len, ending))], True
    return text, False


def could_still_begin(text: str, stops: list[str]) -> int:
    """Return the length of the longest end of `text` that is the beginning of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def test_a_stop_string_over_many_pieces_never_leaks() -> None:
    watcher = StopStrings(("DEFGHIJ",))
    results = [watcher.push(piece) for piece in ("ABC", "DEF", "G", "HI", "J")]
    assert results == [("ABC", False), ("", False), ("", False), ("", False), ("", True)]
    assert watcher.matched == "DEFGHIJ"
    assert watcher.finish() == ""


def test_a_near_miss_is_delivered_in_full() -> None:
    watcher = StopStrings(("DEFGHIJ",))
    assert stream(watcher, ["ABC", "DEF", "G", "HI", "X"]) == ("ABCDEFGHIX", False)


def test_an_unfinished_match_is_delivered_at_the_end() -> None:
    watcher = StopStrings(("DEFGHIJ",))
    assert watcher.push("ABCDEF") == ("ABC", False)
    assert watcher.finish() == "DEF"
    assert watcher.finish() == ""


def test_text_behind_the_stop_is_dropped() -> None:
    watcher = StopStrings(("\n\n",))
    assert watcher.push("one\n\ntwo") == ("one", True)
    assert watcher.push("three") == ("", True)
    assert watcher.finish() == ""


def test_include_stop_keeps_the_stop_and_nothing_behind_it() -> None:
    watcher = StopStrings(("END",), include_stop=True)
    assert [watcher.push("text E"), watcher.push("ND more")] == [("text ", False), ("END", True)]


def test_the_match_that_is_complete_first_wins() -> None:
    assert stream(StopStrings(("bcd", "c")), ["abcd"]) == ("ab", True)
    assert stream(StopStrings(("c", "bcd")), ["abcd"]) == ("ab", True)


def test_of_matches_that_end_together_the_longest_wins() -> None:
    for stops in (("c", "abc", "bc"), ("abc", "bc", "c"), ("bc", "c", "abc")):
        watcher = StopStrings(stops)
        assert stream(watcher, ["xabc"]) == ("x", True)
        assert watcher.matched == "abc"


def test_a_failed_long_match_still_finds_the_short_one_inside() -> None:
    assert stream(StopStrings(("aab",)), list("aaab")) == ("a", True)
    assert stream(StopStrings(("abcabd",)), list("abcabcabd")) == ("abc", True)


def test_without_stop_strings_everything_passes_at_once() -> None:
    watcher = StopStrings(())
    assert watcher.push("anything") == ("anything", False)
    assert watcher.finish() == ""


@pytest.mark.parametrize("stops", [("",), ("a", "")])
def test_an_empty_stop_string_is_refused(stops: tuple[str, ...]) -> None:
    with pytest.raises(TextError, match="empty"):
        StopStrings(stops)


def test_a_stop_string_with_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(TextError, match="U\\+D800"):
        StopStrings(("ok", "a\ud800"))


def test_stop_strings_that_are_too_long_together_are_refused_before_anything_is_built_of_them() -> None:
    def build() -> None:
        with pytest.raises(TextError, match=f"{64 * 2**14} characters, at most {MOST_CHARACTERS}"):
            StopStrings(["ab" * 2**13] * 64)

    assert lines_executed(stop_strings, build) < 100
    StopStrings(["a" * (MOST_CHARACTERS // 64)] * 64)


letters = st.text(alphabet="ab🙂", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=5), max_size=4)
places = st.lists(st.integers(0, 30), max_size=10)


@given(letters, stop_lists, places, st.booleans())
@example("aabab", ["abab", "bab"], [1, 2, 3, 4], False)
def test_every_way_to_cut_a_text_gives_the_same_output(
    text: str, stops: list[str], at: list[int], include_stop: bool
) -> None:
    watcher = StopStrings(stops, include_stop=include_stop)
    assert stream(watcher, cut(text, at)) == expected(text, stops, include_stop)


@given(letters, stop_lists)
def test_exactly_what_could_still_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    watcher, delivered = StopStrings(stops), 0
    for at, char in enumerate(text, start=1):
        safe, stopped = watcher.push(char)
        if stopped:
            break
        delivered += len(safe)
        assert at - delivered == could_still_begin(text[:at], stops)


@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_the_work_is_linear_in_text_that_keeps_almost_matching(piece: int) -> None:
    def work(size: int) -> int:
        watcher = StopStrings(("a" * (size // 2) + "b", "a" * 50 + "c"))
        text = "a" * size
        return lines_executed(
            stop_strings, lambda: stream(watcher, [text[i : i + piece] for i in range(0, size, piece)])
        )

    assert work(8000) < 2.2 * work(4000)


def test_building_a_stop_string_of_sixteen_thousand_characters_is_linear() -> None:
    def work(size: int) -> int:
        return lines_executed(stop_strings, lambda: StopStrings(("ab" * (size // 2) + "aa" * (size // 2),)))

    assert work(8_000) < 2.2 * work(4_000)


def test_a_long_stop_string_matches_in_the_end() -> None:
    stop = "a" * 9_999 + "b"
    assert stream(StopStrings((stop,)), list("a" * 20_000 + "b tail")) == ("a" * 10_001, True)
