"""A stream of ids becomes the same text as decoding them all at once, without half characters on the way."""

import re
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from checkpoint.tokenizer import load_text
from frontend import detokenizer, token_pieces
from frontend.detokenizer import Detokenizer
from frontend.token_pieces import TokenPieces
from tests.line_counter import lines_executed
from tests.tiny_tokenizers import HARD_TEXTS, byte_level_tokenizer, id_of, sentencepiece_tokenizer


def pieces_of(ids: list[int], tokenizer: Tokenizer, skip_special_tokens: bool = True) -> list[str]:
    """Feed ids one by one; return what each gave, and the end."""
    stream = Detokenizer(TokenPieces(tokenizer), skip_special_tokens=skip_special_tokens)
    return [stream.push([i]) for i in ids] + [stream.finish()]


def normal(text: str) -> str:
    """Bring bad bytes to one form: how many replacement characters stand for them is a matter of the decoder."""
    return re.sub("\ufffd+", "\ufffd", text)


@pytest.fixture(scope="module")
def default_tokenizer(default_model_path: Path) -> Tokenizer:
    return load_text(default_model_path).tokenizer


@pytest.fixture(params=["byte-level", "sentencepiece"])
def tiny(request: pytest.FixtureRequest) -> Tokenizer:
    """Return each of the small tokenizers in turn."""
    return byte_level_tokenizer() if request.param == "byte-level" else sentencepiece_tokenizer()


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_one_id_at_a_time_gives_the_full_text(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text).ids
    got = pieces_of(ids, tiny)
    assert "".join(got) == tiny.decode(ids) == text


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_no_piece_shows_half_a_character(tiny: Tokenizer, text: str) -> None:
    for piece in pieces_of(tiny.encode(text).ids, tiny):
        assert set(piece) <= set(text)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_the_default_model_streams_the_full_text(default_tokenizer: Tokenizer, text: str) -> None:
    ids = default_tokenizer.encode(text).ids
    got = pieces_of(ids, default_tokenizer)
    assert "".join(got) == text
    assert all(set(piece) <= set(text) for piece in got)


@given(st.data())
def test_any_ids_give_what_decoding_them_at_once_gives(data: st.DataObject) -> None:
    tokenizer = byte_level_tokenizer()
    known = tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, known - 1) | st.integers(known, known + 100), max_size=40))
    skip = data.draw(st.booleans())
    # Equal to the number of replacement characters: both replace the longest bad prefix of a character by one.
    assert "".join(pieces_of(ids, tokenizer, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(st.data())
def test_any_ids_of_the_default_model_give_what_decoding_them_at_once_gives(
    default_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, 49_151 + 64), max_size=60))
    skip = data.draw(st.booleans())
    assert "".join(pieces_of(ids, default_tokenizer, skip)) == default_tokenizer.decode(ids, skip_special_tokens=skip)


def test_ten_thousand_random_sequences_of_the_default_model_stream_as_they_decode(default_tokenizer: Tokenizer) -> None:
    random, pieces = Random(0), TokenPieces(default_tokenizer)
    for _ in range(10_000):
        ids = random.choices(range(49_152), k=20)
        stream = Detokenizer(pieces)
        assert "".join([stream.push([i]) for i in ids]) + stream.finish() == default_tokenizer.decode(ids)


@given(st.data())
def test_with_byte_fallback_any_ids_give_the_full_text_unless_bad_bytes_spoil_a_good_run(data: st.DataObject) -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 5), max_size=30))
    got, whole = "".join(pieces_of(ids, tokenizer)), tokenizer.decode(ids)
    kept = [i for i in ids if i not in (0, 1, 2)]
    runs = re.findall(r"b+", "".join("b" if 3 <= i < 259 else "t" for i in kept if tokenizer.id_to_token(i)))
    if all(len(run) == 1 for run in runs):
        assert normal(got) == normal(whole)
    else:  # the decoder throws a run of bytes away whole; a stream has already shown its good part
        assert normal(whole).count("\ufffd") <= normal(got).count("\ufffd") + len(runs)


@given(st.lists(st.integers(), max_size=20))
def test_no_integer_raises(ids: list[int]) -> None:
    for tokenizer in (byte_level_tokenizer(), sentencepiece_tokenizer()):
        pieces_of(ids, tokenizer)


@given(st.lists(st.lists(st.integers(0, 345), max_size=6), max_size=8))
def test_how_ids_are_grouped_changes_nothing(groups: list[list[int]]) -> None:
    tokenizer = byte_level_tokenizer()
    stream = Detokenizer(TokenPieces(tokenizer))
    grouped = "".join(stream.push(group) for group in groups) + stream.finish()
    assert grouped == "".join(pieces_of([i for group in groups for i in group], tokenizer))


def test_leading_spaces_are_kept_as_decoding_keeps_them(default_tokenizer: Tokenizer) -> None:
    for text in (" Paris", "   Paris", "  "):
        ids = default_tokenizer.encode(text).ids
        assert "".join(pieces_of(ids, default_tokenizer)) == text
        assert pieces_of(ids, default_tokenizer)[0].startswith(" ")
    one_space = default_tokenizer.encode(" ").ids
    assert pieces_of(one_space * 2, default_tokenizer) == [" ", " ", ""]


def test_sentencepiece_drops_the_first_space_of_a_text_once() -> None:
    tokenizer = sentencepiece_tokenizer()
    paris, space, end = (id_of(tokenizer, token) for token in ("▁Paris", "▁", "</s>"))
    byte = id_of(tokenizer, "<0x20>")
    for ids in ([paris, paris], [space, space, paris], [end, paris, end, paris], [paris, space, paris], [byte, paris]):
        assert "".join(pieces_of(ids, tokenizer)) == tokenizer.decode(ids)


def test_output_behind_a_prompt_keeps_its_first_space() -> None:
    tokenizer = sentencepiece_tokenizer()
    stream = Detokenizer(TokenPieces(tokenizer), continues_text=True)
    assert stream.push([id_of(tokenizer, "▁Paris")]) == " Paris"


def test_metaspace_and_missing_decoders_stream_as_they_decode() -> None:
    for decoder in (decoders.Metaspace(), None):
        tokenizer = Tokenizer.from_str(sentencepiece_tokenizer().to_str())
        tokenizer.decoder = decoder
        ids = tokenizer.encode("a Paris  a").ids
        assert "".join(pieces_of(ids, tokenizer)) == tokenizer.decode(ids)


def test_special_tokens_are_skipped_unless_asked_for() -> None:
    tokenizer = byte_level_tokenizer()
    ids = [*tokenizer.encode("hello").ids, id_of(tokenizer, "<tool call>"), id_of(tokenizer, "</s>")]
    assert "".join(pieces_of(ids, tokenizer)) == "hello<tool call>"
    assert "".join(pieces_of(ids, tokenizer, skip_special_tokens=False)) == "<s>hello<tool call></s>"


def test_the_last_word_before_the_end_token_is_delivered() -> None:
    tokenizer = byte_level_tokenizer()
    ids = [*tokenizer.encode("how are you today?").ids, id_of(tokenizer, "</s>")]
    assert "".join(pieces_of(ids, tokenizer)).endswith("today?")


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokenizer = byte_level_tokenizer()
    lone = [id_of(tokenizer, char) for char in ("ð", "Ł", "Ļ")]  # three of the four bytes of an emoji
    assert pieces_of(lone, tokenizer) == ["", "", "", "\ufffd"]


def test_bytes_that_never_become_a_character_do_not_pile_up() -> None:
    tokenizer = byte_level_tokenizer()
    lone = id_of(tokenizer, "ð")  # only ever the first byte of a character
    stream, delivered = Detokenizer(TokenPieces(tokenizer)), 0
    for count in range(1, 4001):
        delivered += len(stream.push([lone]))
        assert count - delivered <= 1
    assert delivered + len(stream.finish()) == 4000


@pytest.mark.parametrize("token", ["ð", "Ģ", "a"])
def test_the_work_is_linear_in_the_number_of_ids(token: str) -> None:
    tokenizer = byte_level_tokenizer()
    ids = [id_of(tokenizer, token)]

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        pieces_of(ids * count, tokenizer)
        return time.perf_counter() - begin

    for module in (detokenizer, token_pieces):
        work = [lines_executed(module, lambda n=n: pieces_of(ids * n, tokenizer)) for n in (2000, 4000)]  # type: ignore[misc]
        assert work[1] < 2.2 * work[0]
    # Lines do not see what the decoder does inside: decoding all again would make this 100 times longer.
    assert min(seconds(40_000) for _ in range(3)) < 40 * min(seconds(4_000) for _ in range(3))


def test_streams_share_the_pieces_of_their_tokenizer() -> None:
    tokenizer = byte_level_tokenizer()
    pieces = TokenPieces(tokenizer)
    streams = [Detokenizer(pieces) for _ in range(8)]
    texts = ["🙂 one", "two 你好", "three", "ไทย four", "5", "six  ", " seven", ""]
    todo = [tokenizer.encode(text).ids for text in texts]
    got = [""] * 8
    for step in range(max(map(len, todo))):
        for i, stream in enumerate(streams):
            got[i] += stream.push(todo[i][step : step + 1])
    hello = id_of(tokenizer, "Ġhello")
    assert pieces.inside(hello) is pieces.inside(hello)  # worked out once
    assert [text + stream.finish() for text, stream in zip(got, streams, strict=True)] == texts
