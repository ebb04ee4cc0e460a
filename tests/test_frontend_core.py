"""The frontend core: what it refuses, what text it makes, and that every request ends whoever dies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from frontend.core import PATIENCE_SECONDS
from frontend.reading import MOST_CHARACTERS_A_TOKEN
from frontend.seeds import sample_seed
from frontend.text_error import MOST_REASON_CHARACTERS
from frontend.text_peer import MANY_ANSWERS_WAITING, MOST_ANSWERS_WAITING, READING_SECONDS
from frontend.turn import for_a_turn
from protocol.awake_clock import AwakeClock
from protocol.errors import ProtocolError
from protocol.logprobs import Scores
from protocol.messages import (
    MOST_STOP_TOKENS,
    MOST_TOKEN_IDS,
    Abort,
    AskTotals,
    Attach,
    Cancel,
    Finish,
    Message,
    Ping,
    Pong,
    Submit,
    Unattached,
)
from protocol.sockets import HEARTBEAT_SECONDS, LATE_SECONDS, LONGEST_TURN_SECONDS, SILENCE_SECONDS
from tests.frontend_driver import ME, SEED, Driver, ids, only, text_of
from tests.stub_scheduler import listing
from tests.word_tokenizer import EOS, word, word_text

WORDS = ("ABC", "DEF", "G", "HI", "J", "X", "Ġtoday", "?", "JKL")
ABC, DEF, G, HI, J, X, TODAY, MARK, JKL = (word(i) for i in range(len(WORDS)))


def driver(**settings: Any) -> Driver:
    return Driver(word_text(*WORDS), **settings)


# ---------------------------------------------------------------- what is asked of a scheduler


def test_a_request_without_settings_gets_plain_sampling_a_drawn_seed_and_what_the_context_has_room_for() -> None:
    it = driver(max_model_len=64)
    it.generate(token_ids=ids(5, 6, 7))
    (submit,) = it.submitted()
    assert submit.prompt.tolist() == [5, 6, 7]
    assert not len(submit.output)
    assert (submit.temperature, submit.top_k, submit.top_p, submit.min_p) == (1.0, 0, 1.0, 0.0)
    assert submit.seed == SEED
    assert submit.max_tokens == 61
    assert submit.timeout == 0


def test_settings_are_passed_on_and_a_limit_beyond_the_context_is_clamped() -> None:
    it = driver(max_model_len=64)
    it.generate(
        max_tokens=62,
        temperature=0.0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        seed=9,
        ignore_eos=True,
        stop_token_ids=ids(4),
        timeout=2.5,
    )
    (submit,) = it.submitted()
    assert submit.max_tokens == 61
    assert (submit.temperature, submit.top_k, submit.top_p, submit.min_p) == (0.0, 5, 0.5, 0.1)
    assert (submit.seed, submit.ignore_eos, submit.stop_token_ids.tolist()) == (9, True, [4])
    assert submit.timeout == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("seed", "sent"), [(0, 0), (-1, 2**64 - 1), (-(2**63), 2**63), (2**63 - 1, 2**63 - 1)], ids=str
)
def test_a_signed_seed_becomes_an_unsigned_one_by_twos_complement(seed: int, sent: int) -> None:
    it = driver()
    it.generate(seed=seed)
    assert it.submitted()[0].seed == sent


def test_a_chat_is_rendered_by_the_template_and_a_null_content_is_nothing() -> None:
    it = driver()
    it.generate(messages=({"role": "user", "content": "a"}, {"role": "assistant", "content": None}))
    text = it.submitted()[0].prompt.tolist()
    expected = word_text(*WORDS).tokenizer.encode("user: a\nassistant: \n", add_special=False)
    assert text == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"token_ids": ids()}, "prompt is empty"),
        ({"messages": ()}, "messages is empty"),
        ({"messages": ({"role": "king", "content": "a"},)}, "role"),
        ({"messages": ({"role": "user", "content": 5},)}, "content"),
        ({"token_ids": ids(1, 300)}, "token id 300"),
        ({"token_ids": ids(*[1] * 64)}, "64 tokens"),
        ({"prompt": "a" * 65}, "65 tokens"),
        ({"prompt": "a" * 10**7}, "10000000 characters"),
        ({"stop": ("ab" * 2**13,) * 64}, "1048576 characters"),
        ({"stop": ("a", "")}, "stop string is empty"),
        ({"stop_token_ids": ids(300)}, "token id 300"),
        ({"stop_token_ids": ids(*[1] * (MOST_STOP_TOKENS + 1))}, "stop_token_ids"),
        ({"allowed_token_ids": ids(300)}, "token id 300"),
        ({"allowed_token_ids": ids(*[1] * (MOST_TOKEN_IDS + 1))}, "1025 token ids in allowed_token_ids"),
        ({"bad_words": ("",)}, "bad word is empty"),
        ({"bad_words": ("ab" * 2**13,) * 64}, "1048576 characters"),
        ({"bad_words": ("a" * 32,)}, "is 33 tokens, at most 32"),
        ({"bad_words": tuple(f"{i:03}" for i in range(129))}, "129 of several tokens, 387 in all"),
        ({"bad_words": tuple(f"{i:010}" for i in range(103))}, "103 of several tokens, 1030 in all"),
        ({"min_tokens": 62}, "min_tokens: must be at most 61"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_user_got_wrong_is_refused_in_words_and_reaches_no_scheduler(
    fields: dict[str, object], reason: str
) -> None:
    it = driver()
    it.generate(**fields)  # type: ignore[arg-type]
    (chunk,) = it.chunks()
    assert (chunk.request, chunk.finish) == (1, Finish.REFUSED)
    assert reason in chunk.error
    assert (chunk.at_fault,) == tuple(fields)
    assert (chunk.code == "context_length_exceeded") == (reason in ("64 tokens", "65 tokens", "10000000 characters"))
    assert not it.submitted()
    it.generate(1)
    assert len(it.submitted()) == 1, "the number is free again and the next request is served"


@pytest.mark.parametrize("kind", ["prompt", "chat"])
def test_a_text_that_is_far_too_long_is_refused_unread_however_long_the_longest_token_is(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = word_text(*WORDS, "x" * 1000)
    it = Driver(text, max_model_len=64)
    monkeypatch.setattr(text.tokenizer, "encode", lambda *_, **__: pytest.fail("it was read"))
    long = "x" * (MOST_CHARACTERS_A_TOKEN * 64 + 1)
    it.generate(**({"prompt": long} if kind == "prompt" else {"messages": ({"role": "user", "content": long},)}))
    (chunk,) = it.chunks()
    assert chunk.finish == Finish.REFUSED
    assert f"at most {MOST_CHARACTERS_A_TOKEN * 64} are read" in chunk.error


def test_a_text_of_a_few_very_long_tokens_is_served_up_to_that_length() -> None:
    it = Driver(word_text(*WORDS, "x" * 1000), max_model_len=64)
    it.generate(prompt="a" * 60)
    assert len(it.submitted()) == 1


def test_a_refusal_does_not_give_a_long_text_back() -> None:
    it = Driver(word_text(template="{{ raise_exception(messages[0].content) }}"))
    it.generate(messages=({"role": "user", "content": "a" * 10**6},))
    (chunk,) = it.chunks()
    assert chunk.error.startswith("the model's chat template refused")
    assert len(chunk.error) < MOST_REASON_CHARACTERS + 10


def test_a_model_without_a_chat_template_refuses_chats_and_serves_prompts() -> None:
    it = Driver(word_text(template=None))
    it.generate(1, messages=({"role": "user", "content": "a"},))
    it.generate(2, prompt="a")
    (chunk,) = it.chunks()
    assert chunk.finish == Finish.REFUSED
    assert "no chat template" in chunk.error
    assert len(it.submitted()) == 1


def test_a_prompt_that_leaves_room_for_one_token_is_served() -> None:
    it = driver(max_model_len=64)
    it.generate(token_ids=ids(*[1] * 63))
    assert it.submitted()[0].max_tokens == 1


def test_a_number_that_is_still_in_use_is_refused_and_the_first_request_goes_on() -> None:
    it = driver()
    it.generate(1)
    it.generate(1)
    it.generate(1, peer=b"another")
    (submit, other) = it.submitted()
    (chunk,) = it.chunks()
    assert chunk.finish == Finish.REFUSED
    assert "still being served" in chunk.error
    it.tokens(submit, 0, [ABC, DEF], Finish.LENGTH)
    it.tokens(other, 0, [X], Finish.LENGTH)
    assert text_of(it.chunks()) == "ABCDEF"
    assert text_of(it.chunks(b"another")) == "X"


def test_a_number_may_be_used_again_right_after_a_cancel() -> None:
    it = driver()
    it.generate(1)
    it.client(Cancel(1))
    (chunk,) = it.chunks()
    it.generate(1)
    first, second = it.submitted()
    it.tokens(first, 0, [ABC])
    it.tokens(second, 0, [DEF], Finish.LENGTH)
    assert chunk.finish == Finish.ABORT
    assert text_of(it.chunks()) == "DEF"


# ---------------------------------------------------------------- text


def test_a_stream_gets_each_piece_and_the_counts_up_to_it() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC])
    (first,) = it.chunks()
    it.tokens(submit, 1, [DEF, G], Finish.LENGTH)
    (last,) = it.chunks()
    assert (first.text, first.token_ids.tolist(), first.finish) == ("ABC", [ABC], Finish.RUNNING)
    assert (last.text, last.token_ids.tolist(), last.finish) == ("DEFG", [DEF, G], Finish.LENGTH)
    assert (first.prompt_tokens, first.output_tokens) == (3, 1)
    assert (last.prompt_tokens, last.output_tokens) == (3, 3)
    assert not it.core.peers[ME].requests


def test_what_was_cached_is_told_from_the_first_token_on_and_is_not_what_a_second_scheduler_had() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC], cached=2)
    it.scheduler(0, Unattached(1))
    it.said_to_scheduler()
    it.attach()
    (again,) = it.submitted()
    it.tokens(again, 1, [DEF], Finish.LENGTH, cached=1)
    assert [chunk.cached_tokens for chunk in it.chunks()] == [2]


def test_without_stream_there_is_exactly_one_chunk() -> None:
    it = driver()
    it.generate(stream=False)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC])
    it.tokens(submit, 1, [DEF])
    assert not it.chunks()
    it.tokens(submit, 2, [EOS], Finish.STOP)
    (chunk,) = it.chunks()
    assert (chunk.text, chunk.token_ids.tolist(), chunk.output_tokens) == ("ABCDEF", [ABC, DEF, EOS], 3)


SPLITS = [[[ABC, DEF, G, HI, J, X]], [[ABC], [DEF], [G], [HI], [J]], [[ABC, DEF], [G, HI], [J, X]]]


@pytest.mark.parametrize("rows", SPLITS, ids=["one row", "a row each", "two a row"])
def test_of_a_stop_string_over_many_tokens_nothing_gets_out_and_the_counts_do_not_depend_on_the_rows(
    rows: list[list[int]],
) -> None:
    it = driver()
    it.generate(stop=("DEFGHIJ",))
    (submit,) = it.submitted()
    offset, chunks = 0, []
    for row in rows:
        it.tokens(submit, offset, row)
        offset += len(row)
        chunks += it.chunks()
    assert text_of(chunks) == "ABC"
    assert chunks[-1].finish == Finish.STOP
    assert chunks[-1].output_tokens == 5
    (abort,) = only(it.said_to_scheduler(), Abort)
    assert abort.request.tolist() == [submit.request]
    it.tokens(submit, offset, [X, X])
    assert it.core.counters["overshoot_tokens"] == offset - 5 + 2
    assert not it.chunks()


def test_a_near_miss_of_a_stop_string_is_delivered_in_the_end() -> None:
    it = driver()
    it.generate(stop=("DEFGHIJ",))
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, DEF, G, HI])
    assert text_of(it.chunks()) == "ABC"
    it.tokens(submit, 4, [X])
    assert text_of(it.chunks()) == "DEFGHIX"
    it.tokens(submit, 5, [DEF, G], Finish.LENGTH)
    (chunk,) = it.chunks()
    assert (chunk.text, chunk.finish) == ("DEFG", Finish.LENGTH)


def test_text_behind_a_stop_string_in_the_same_token_is_dropped() -> None:
    it = driver()
    it.generate(stop=("HIJ",))
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, HI, JKL], Finish.LENGTH)
    (chunk,) = it.chunks()
    assert (chunk.text, chunk.finish) == ("ABC", Finish.STOP)
    assert not only(it.said_to_scheduler(), Abort), "it had ended at the scheduler"


def test_a_stop_string_can_be_asked_for_as_part_of_the_text() -> None:
    it = driver()
    it.generate(stop=("HIJ",), include_stop=True)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, HI, JKL])
    assert text_of(it.chunks()) == "ABCHIJ"


def test_an_end_token_is_no_text_and_the_word_before_it_stays_whole_beside_stop_token_ids() -> None:
    it = driver()
    it.generate(stop_token_ids=ids(X))
    (submit,) = it.submitted()
    it.tokens(submit, 0, [TODAY, MARK])
    it.tokens(submit, 2, [EOS], Finish.STOP)
    chunks = it.chunks()
    assert text_of(chunks) == " today?"
    assert chunks[-1].finish == Finish.STOP


@pytest.mark.parametrize(("ignored", "text"), [(False, "ABC"), (True, "ABCX")], ids=["ends", "ignored"])
def test_an_end_token_that_looks_like_a_word_is_text_only_if_it_is_ignored(ignored: bool, text: str) -> None:
    it = driver(eos=(EOS, X))
    it.generate(ignore_eos=ignored)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, X], Finish.LENGTH if ignored else Finish.STOP)
    assert text_of(it.chunks()) == text


@pytest.mark.parametrize(("include", "text"), [(False, "ABC"), (True, "ABCX")], ids=["dropped", "included"])
def test_a_stop_token_that_is_a_word_is_text_only_if_asked_for(include: bool, text: str) -> None:
    it = driver()
    it.generate(stop_token_ids=ids(X), include_stop=include)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, X], Finish.STOP)
    (chunk,) = it.chunks()
    assert (chunk.text, chunk.token_ids.tolist()) == (text, [ABC, X])


@pytest.mark.parametrize(("least", "text"), [(0, "ABC"), (1, "ABC"), (2, "ABCDEFGHIJ"), (6, "ABCDEFGHIJX")])
def test_a_stop_string_in_the_text_of_the_first_min_tokens_ends_nothing(least: int, text: str) -> None:
    it = driver()
    it.generate(stop=("DEFG", "X"), min_tokens=least)
    (submit,) = it.submitted()
    assert submit.min_tokens == least
    for offset, token in enumerate((ABC, DEF, G, HI, J, X)):
        it.tokens(submit, offset, [token], Finish.LENGTH if offset == 5 else Finish.RUNNING)
    assert text_of(it.chunks()) == text


def test_the_settings_of_logits_reach_the_scheduler() -> None:
    it = driver()
    it.generate(
        repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.5, min_tokens=2, bias_token_ids=ids(7),
        bias=np.array([-3.5], "<f4"), allowed_token_ids=ids(7, 8), bad_words=("a", "b"),
    )  # fmt: skip
    it.generate(2)
    some, none = it.submitted()
    assert (some.repetition_penalty, some.presence_penalty, some.frequency_penalty) == (1.2, 0.5, -0.5)
    lists = (some.bias_token_ids, some.bias, some.allowed_token_ids, some.banned_token_ids)
    a, b = (word_text().tokenizer.encode(letter)[-1] for letter in "ab")
    assert [column.tolist() for column in lists if column is not None] == [[7], [-3.5], [7, 8], sorted([a, b])]
    assert (none.repetition_penalty, none.bias_token_ids, none.banned_token_ids) == (1.0, None, None)


@pytest.mark.parametrize(
    ("bad_words", "single", "several"),
    [
        (("ab",), [], ["a b", "Ġa b"]),
        (("a", "ab"), ["a", "Ġa"], ["a b", "Ġa b"]),
        (("b",), ["b"], []),  # behind a blank it ends with what is banned anyway
        (("b", "ab", "cab"), ["b"], []),
        (("ab", "cab", "ab"), [], ["a b", "Ġa b"]),
        ((" a",), ["Ġa"], []),
        (("c a",), [], ["c Ġa"]),
    ],
    ids=repr,
)
def test_bad_words_are_banned_as_they_begin_a_text_and_as_they_stand_behind_a_blank(
    bad_words: tuple[str, ...], single: list[str], several: list[str]
) -> None:
    text = word_text("Ġa")
    tokenizer = text.tokenizer.tokenizer
    tokens = tokenizer.get_vocab()
    tokenizer.model = models.BPE(vocab=tokens, merges=[("Ġ", "a")])
    it = Driver(text)
    it.generate(bad_words=bad_words)
    (submit,) = it.submitted()
    found = submit.banned_token_ids, submit.bad_word_tokens, submit.bad_word_lengths
    banned, words, lengths = ([] if column is None else column.tolist() for column in found)
    expected = sorted([tokens[token] for token in word.split(" ")] for word in several)
    assert banned == sorted(tokens[token] for token in single)
    assert (words, lengths) == ([*chain(*expected)], [len(word) for word in expected])


def test_log_probabilities_come_beside_the_tokens_whose_they_are() -> None:
    it = driver()
    it.generate(logprobs=1)
    (submit,) = it.submitted()
    assert submit.logprobs == 1
    one, two, three = [(ABC, -1.0), (X, -0.5)], [(DEF, -2.0), (DEF, -2.0)], [(G, -0.25), (G, -0.25)]
    it.tokens(submit, 0, [ABC], logprobs=listing(one))
    it.tokens(submit, 0, [ABC, DEF], logprobs=listing(one, two))  # the first of them for the second time
    (chunk,) = it.chunks()
    assert chunk.logprobs is not None
    assert chunk.logprobs.entries() == [one, two]
    it.tokens(submit, 2, [G], Finish.LENGTH, logprobs=listing(three))
    (chunk,) = it.chunks()
    assert chunk.logprobs is not None
    assert chunk.logprobs.entries() == [three]


def test_behind_a_stop_string_no_log_probabilities_are_told() -> None:
    it = driver()
    it.generate(logprobs=0, stop=("DEF",), stream=False)
    (submit,) = it.submitted()
    known = [[(token, -1.0)] for token in (ABC, DEF, G)]
    it.tokens(submit, 0, [ABC, DEF, G], logprobs=listing(*known))
    (chunk,) = it.chunks()
    assert chunk.logprobs is not None
    assert chunk.logprobs.entries() == known[:2]


def test_a_request_resubmitted_elsewhere_keeps_the_log_probabilities_that_it_has() -> None:
    it = driver()
    it.generate(logprobs=0, stream=False)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC], logprobs=listing([(ABC, -1.0)]))
    it.scheduler(0, Unattached(5))
    it.attach()
    (again,) = it.submitted()
    assert (again.output.tolist(), again.logprobs) == ([ABC], 0)
    it.tokens(again, 1, [DEF], Finish.LENGTH, logprobs=listing([(DEF, -2.0)]))
    (chunk,) = it.chunks()
    assert chunk.logprobs is not None
    assert chunk.logprobs.entries() == [[(ABC, -1.0)], [(DEF, -2.0)]]


def test_who_asks_for_no_log_probabilities_gets_none() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC], logprobs=listing([(ABC, -1.0)]))
    (chunk,) = it.chunks()
    assert chunk.logprobs is None


@pytest.mark.parametrize("more", [{"bias_token_ids": ids(300)}, {"bias_token_ids": ids(*[1] * (MOST_TOKEN_IDS + 1))}])
def test_a_bias_for_what_is_no_token_is_refused(more: dict[str, Any]) -> None:
    it = driver()
    it.generate(**more, bias=np.zeros(len(more["bias_token_ids"]), "<f4"))
    (chunk,) = it.chunks()
    assert (chunk.finish, chunk.at_fault) == (Finish.REFUSED, "bias_token_ids")


def test_a_stop_token_whose_end_comes_in_a_later_row_is_no_text_either() -> None:
    it = driver()
    it.generate(stop_token_ids=ids(X))
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, X])
    it.tokens(submit, 2, [], Finish.STOP)
    assert text_of(it.chunks()) == "ABC"


def test_a_token_that_would_end_it_is_text_once_more_tokens_follow() -> None:
    it = driver()
    it.generate(stop_token_ids=ids(X))
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, X])
    it.tokens(submit, 2, [DEF], Finish.LENGTH)
    assert text_of(it.chunks()) == "ABCXDEF"


def test_the_bytes_of_one_character_wait_for_each_other_and_an_unfinished_one_is_told_at_the_end() -> None:
    it = driver()
    text = word_text()
    smile = text.tokenizer.encode("🙂", add_special=False)
    assert len(smile) == 4
    it.generate()
    (submit,) = it.submitted()
    for at, token in enumerate(smile):
        it.tokens(submit, at, [token])
        assert text_of(it.chunks()) == ("🙂" if at == 3 else "")
    it.tokens(submit, 4, smile[:2], Finish.LENGTH)
    assert text_of(it.chunks()) == "�"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (Finish.LENGTH, Finish.STOP),
        (Finish.ABORT, Finish.ABORT),
        (Finish.TIMEOUT, Finish.TIMEOUT),
        (Finish.ERROR, Finish.ERROR),
    ],
)
def test_half_a_character_that_completes_a_stop_string_changes_no_end_but_the_models_own(
    finish: Finish, reason: Finish
) -> None:
    it = driver()
    it.generate(stop=("\ufffd",))
    (submit,) = it.submitted()
    half = word_text().tokenizer.encode("🙂", add_special=False)[:2]
    it.tokens(submit, 0, [ABC, *half])
    if finish is Finish.ABORT:
        it.client(Cancel(1))
    else:
        it.tokens(submit, 3, [], finish)
    chunks = it.chunks()
    assert (text_of(chunks), chunks[-1].finish) == ("ABC", reason)


# ---------------------------------------------------------------- what schedulers get wrong


def test_tokens_that_come_twice_are_ignored_and_what_is_new_behind_them_is_not() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC, DEF])
    it.tokens(submit, 0, [ABC, DEF])
    it.tokens(submit, 1, [DEF, G])
    it.tokens(submit, 3, [HI], Finish.LENGTH)
    assert text_of(it.chunks()) == "ABCDEFGHI"
    assert it.core.counters["duplicate_tokens"] == 3


def test_a_gap_ends_the_request_with_an_error_and_an_abort() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC])
    it.tokens(submit, 2, [G])
    it.tokens(submit, 3, [HI])
    (chunk,) = it.chunks()
    assert (chunk.finish, chunk.text) == (Finish.ERROR, "ABC")
    assert "did not come" in chunk.error
    assert [abort.request.tolist() for abort in only(it.said_to_scheduler(), Abort)] == [[submit.request]]


def test_an_error_of_the_scheduler_reaches_the_user_in_its_words() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC], Finish.ERROR, error="the model returned NaN")
    (chunk,) = it.chunks()
    assert (chunk.text, chunk.finish, chunk.error) == ("ABC", Finish.ERROR, "the model returned NaN")


def test_tokens_of_another_session_are_dropped() -> None:
    it = driver()
    it.generate()
    (submit,) = it.submitted()
    it.sessions[0] += 1
    it.tokens(submit, 0, [ABC])
    assert not it.chunks()
    assert it.core.counters["stale_deltas"] == 1


# ---------------------------------------------------------------- schedulers come and go


def restart(it: Driver, index: int = 0) -> None:
    """Let a scheduler have been restarted: it says so, and answers the Attach that follows."""
    it.sessions[index] += 50
    it.scheduler(index, Unattached(it.sessions[index]))
    it.attach(index)


def test_after_a_restart_a_request_goes_on_where_it_was() -> None:
    it = driver()
    it.generate(seed=5, max_tokens=9, stop=("DEFG",))
    (first,) = it.submitted()
    it.tokens(first, 0, [ABC, DEF])
    restart(it)
    (again,) = it.submitted()
    assert again.output.tolist() == [ABC, DEF]
    assert (first.again, again.again) == (False, True), "what was accepted once is not turned away later"
    assert (again.seed, again.max_tokens, again.prompt.tolist()) == (5, 9, first.prompt.tolist())
    assert again.request != first.request, "ids are never used twice"
    it.tokens(again, 2, [HI])
    it.tokens(again, 3, [DEF, G])
    chunks = it.chunks()
    assert text_of(chunks) == "ABCDEFHI"
    assert chunks[-1].finish == Finish.STOP


def test_each_attachment_has_a_new_incarnation_so_the_scheduler_ends_what_it_still_has_of_us() -> None:
    it = driver()
    before = it.core.links[0].incarnation
    it.scheduler(0, Unattached(7))
    (attach,) = only(it.said_to_scheduler(), Attach)
    assert attach.incarnation != before


def test_many_unattached_and_a_late_attached_resubmit_only_once() -> None:
    it = driver()
    it.generate()
    it.submitted()
    it.scheduler(0, Unattached(7))
    incarnation = it.core.links[0].incarnation
    assert it.said_to_scheduler() == [Attach(incarnation)]
    it.scheduler(0, Unattached(7))
    it.scheduler(0, Unattached(7))
    assert it.said_to_scheduler() == []
    it.attach()
    assert len(it.submitted()) == 1
    assert it.core.links[0].incarnation == incarnation
    it.core.links[0].attach()
    it.attach()  # the answer to an Attach that was sent again
    assert not it.submitted()


def test_a_pong_of_another_session_means_a_restart() -> None:
    it = driver()
    it.generate()
    it.submitted()
    it.scheduler(0, Pong(it.sessions[0], 3))
    assert not it.said_to_scheduler()
    it.scheduler(0, Pong(99, 0))
    assert only(it.said_to_scheduler(), Attach)


def test_a_cancel_while_the_scheduler_is_away_ends_the_request_and_nothing_is_resubmitted() -> None:
    it = driver()
    it.generate()
    it.submitted()
    it.scheduler(0, Unattached(7))
    it.client(Cancel(1))
    it.attach()
    assert it.said_to_scheduler() == [Attach(it.core.links[0].incarnation)]
    assert it.chunks()[0].finish == Finish.ABORT


def test_work_goes_where_the_fewest_tokens_are_outstanding() -> None:
    it = driver(schedulers=2)
    it.generate(1, max_tokens=50)
    it.generate(2, max_tokens=10)
    it.generate(3, max_tokens=10)
    it.generate(4, max_tokens=40)
    assert [submit.max_tokens for submit in it.submitted(0)] == [50]
    second = it.submitted(1)
    assert [submit.max_tokens for submit in second] == [10, 10, 40]
    it.generate(5, max_tokens=1)  # 53 against 69
    assert len(it.submitted(0)) == 1
    for submit in second:
        it.tokens(submit, 0, [ABC], Finish.LENGTH, index=1)
    it.generate(6, max_tokens=1)
    assert len(it.submitted(1)) == 1


def test_tokens_that_have_come_are_outstanding_no_more() -> None:
    it = driver(schedulers=2)
    it.generate(1, max_tokens=20)
    it.generate(2, max_tokens=19)
    (first,), (_,) = it.submitted(0), it.submitted(1)
    it.tokens(first, 0, [ABC] * 10)
    it.generate(3)
    assert len(it.submitted(0)) == 1


def test_requests_of_a_silent_scheduler_go_on_at_another() -> None:
    it = driver(schedulers=2)
    it.generate(1)
    (submit,) = it.submitted(0)
    it.tokens(submit, 0, [ABC])
    it.wait(SILENCE_SECONDS + 1, alive=[1], peers=[ME])
    (again,) = it.submitted(1)
    assert again.output.tolist() == [ABC]
    it.tokens(again, 1, [DEF], Finish.LENGTH, index=1)
    it.tokens(submit, 1, [X], Finish.LENGTH, index=0)
    assert text_of(it.chunks()) == "ABCDEF"


def test_with_no_scheduler_left_requests_end_with_an_error_after_a_while() -> None:
    it = driver()
    it.generate(1)
    it.submitted()
    it.wait(SILENCE_SECONDS + 1, peers=[ME])
    it.generate(2)
    assert not it.chunks(), "it may come back"
    it.wait(PATIENCE_SECONDS + 1, peers=[ME])
    assert {(chunk.request, chunk.finish) for chunk in it.chunks()} == {(1, Finish.ERROR), (2, Finish.ERROR)}


def test_a_scheduler_that_answers_but_never_attaches_does_not_hold_requests_for_ever() -> None:
    it = driver()
    it.generate(1)
    it.scheduler(0, Unattached(7))
    it.wait(SILENCE_SECONDS + PATIENCE_SECONDS + 1, alive=[0], peers=[ME])
    assert it.chunks()[-1].finish == Finish.ERROR


def test_a_scheduler_that_comes_back_in_time_gets_what_waited() -> None:
    it = driver()
    it.generate(1)
    it.submitted()
    it.wait(SILENCE_SECONDS + 1, peers=[ME])
    it.generate(2)
    it.attach()
    assert len(it.submitted()) == 2


def test_a_request_whose_time_is_up_while_no_scheduler_is_there_ends_so() -> None:
    it = driver()
    it.wait(SILENCE_SECONDS + 1, peers=[ME])
    it.generate(1, timeout=3.0)
    it.wait(2.5, peers=[ME])
    assert not it.chunks()
    it.wait(1, peers=[ME])
    assert it.chunks()[0].finish == Finish.TIMEOUT


def test_a_request_whose_time_is_up_ends_even_if_its_scheduler_hangs() -> None:
    it = driver()
    it.generate(1, timeout=3.0)
    it.generate(2)
    (submit, other) = it.submitted()
    it.tokens(submit, 0, [ABC])
    it.wait(3.0 + LATE_SECONDS - 0.25, peers=[ME])
    assert [chunk.finish for chunk in it.chunks()] == [Finish.RUNNING], "the scheduler's word comes first"
    it.wait(0.5, peers=[ME])
    assert [(chunk.request, chunk.finish) for chunk in it.chunks()] == [(1, Finish.TIMEOUT)]
    (abort,) = only(it.said_to_scheduler(), Abort)
    assert abort.request.tolist() == [submit.request]
    it.tokens(submit, 1, [], Finish.TIMEOUT)
    it.tokens(other, 0, [ABC], Finish.LENGTH)
    assert [chunk.request for chunk in it.chunks()] == [2]


def test_a_resumed_request_has_only_the_rest_of_its_time() -> None:
    it = driver()
    it.generate(1, timeout=8.0)
    it.submitted()
    it.wait(3, alive=[0], peers=[ME])
    restart(it)
    assert it.submitted()[0].timeout == pytest.approx(5.0)


def test_a_scheduler_that_serves_another_model_is_not_used() -> None:
    it = driver(schedulers=2)
    it.scheduler(1, Unattached(7))
    it.attach(1, model="another")
    it.generate(1)
    it.generate(2)
    assert len(it.submitted(0)) == 2
    assert not it.submitted(1)


def test_a_scheduler_that_is_not_there_yet_is_asked_once_a_second() -> None:
    it = driver(attach=False)
    assert not it.core.ready
    assert len(it.said_to_scheduler()) == 1
    it.wait(HEARTBEAT_SECONDS / 2)
    assert not it.said_to_scheduler()
    it.wait(HEARTBEAT_SECONDS)
    it.wait(HEARTBEAT_SECONDS)
    assert only(it.said_to_scheduler(), Attach) == [Attach(it.core.links[0].incarnation)]


def test_a_scheduler_to_which_nothing_was_said_for_a_second_gets_a_ping() -> None:
    it = driver()
    it.wait(HEARTBEAT_SECONDS / 2, alive=[0])
    it.said_to_scheduler()
    it.wait(HEARTBEAT_SECONDS * 1.5, alive=[])
    assert it.said_to_scheduler() == [Ping(), AskTotals()]


# ---------------------------------------------------------------- clients come and go


def test_a_cancel_ends_the_request_once_with_what_text_there_is() -> None:
    it = driver()
    it.generate(stream=False)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [ABC])
    it.client(Cancel(1))
    it.client(Cancel(1))
    it.client(Cancel(99))
    (chunk,) = it.chunks()
    assert (chunk.finish, chunk.text) == (Finish.ABORT, "ABC")
    assert [abort.request.tolist() for abort in only(it.said_to_scheduler(), Abort)] == [[submit.request]]
    it.tokens(submit, 1, [DEF], Finish.ABORT)
    it.client(Cancel(1))
    assert not it.chunks()


def test_requests_of_a_client_that_is_gone_are_aborted_in_one_message() -> None:
    it = driver()
    for request in range(3):
        it.generate(request)
    it.generate(1, peer=b"another")
    *mine, other = it.submitted()
    it.tokens(mine[1], 0, [ABC])
    it.core.client_gone(ME)
    it.core.client_gone(ME)
    it.core.check()
    (abort,) = it.said_to_scheduler()
    assert isinstance(abort, Abort)
    assert abort.request.tolist() == [submit.request for submit in mine]
    it.tokens(mine[0], 0, [ABC])
    it.tokens(other, 0, [ABC], Finish.LENGTH)
    assert text_of(it.chunks(b"another")) == "ABC"


def test_a_silent_client_is_forgotten_and_learns_it_from_the_next_pong() -> None:
    it = driver()
    it.client(Ping())
    (before,) = it.said_to_client()
    it.generate(1)
    it.submitted()
    it.wait(SILENCE_SECONDS - 1, alive=[0])
    assert it.core.peers
    it.wait(2, alive=[0])
    assert not it.core.peers
    assert only(it.said_to_scheduler(), Abort)
    it.client(Ping())
    (after,) = it.said_to_client()
    assert isinstance(before, Pong)
    assert isinstance(after, Pong)
    assert before.session != after.session


def test_a_client_with_requests_is_spoken_to_every_second_so_that_its_death_shows() -> None:
    it = driver()
    it.client(Ping())
    it.said_to_client()
    it.wait(3 * HEARTBEAT_SECONDS, alive=[0])
    assert not it.said_to_client(), "without requests nothing is lost"
    it.generate(1)
    it.wait(HEARTBEAT_SECONDS, alive=[0])
    assert it.said_to_client() == [Ping()]


def test_a_client_in_this_process_needs_no_sign_of_life_and_gets_none() -> None:
    it = driver()
    it.core.join(ME, it.now)
    it.generate(1)
    it.wait(2 * SILENCE_SECONDS, alive=[0])
    assert not it.said_to_client()
    assert it.core.owed == 1
    it.core.client_gone(ME)
    it.core.check()
    assert only(it.said_to_scheduler(), Abort)


def test_troubles_of_schedulers_and_their_workers_are_told_until_they_are_over() -> None:
    it = driver(schedulers=2)
    assert it.core.trouble(it.now) == ""
    it.scheduler(1, Pong(it.sessions[1], 0, trouble="the worker is silent"))
    assert it.core.trouble(it.now) == "the worker is silent"
    it.wait(LATE_SECONDS + 0.5, alive=[1])
    assert it.core.trouble(it.now) == "the scheduler at scheduler 0 is silent; the worker is silent"
    it.scheduler(0, Pong(it.sessions[0], 0))
    it.scheduler(1, Pong(it.sessions[1], 0))
    assert it.core.trouble(it.now) == ""
    it.scheduler(1, Unattached(7))
    assert it.core.trouble(it.now) == "the scheduler at scheduler 1 is not attached"


def test_requests_are_served_as_long_as_any_scheduler_has_any_worker_and_nothing_shuts_down() -> None:
    it = driver(schedulers=2, attach=False)
    assert it.core.closed(it.now) == (
        "the scheduler at scheduler 0 is not attached; the scheduler at scheduler 1 is not attached"
    )
    it.attach(1)
    assert it.core.closed(it.now) == ""
    it.scheduler(1, Pong(it.sessions[1], 0, trouble="one of two workers is silent", serves=True))
    assert (it.core.trouble(it.now) != "", it.core.closed(it.now)) == (True, "")
    it.scheduler(1, Pong(it.sessions[1], 0, trouble="the worker is silent", serves=False))
    assert it.core.closed(it.now) == "the scheduler at scheduler 0 is not attached; the worker is silent"
    it.scheduler(1, Unattached(7))
    it.attach(1)
    assert it.core.closed(it.now) == "", "what was said before is of no more worth"
    it.wait(LATE_SECONDS + 0.5)
    assert "the scheduler at scheduler 1 is silent" in it.core.closed(it.now)
    it.scheduler(1, Pong(it.sessions[1], 0))
    it.core.draining = True
    assert it.core.closed(it.now) == "the server is shutting down"


def test_a_scheduler_that_was_not_asked_is_not_late() -> None:
    it = driver()
    it.wait(0.25)
    assert Ping() in it.said_to_scheduler()
    it.scheduler(0, Pong(it.sessions[0], 0))
    it.now += 3 * LATE_SECONDS
    assert it.core.trouble(it.now) == ""


@pytest.mark.parametrize("busy", [False, True], ids=["of refused prompts", "of served prompts"])
def test_long_turns_of_our_own_make_no_scheduler_late(busy: bool) -> None:
    it = driver()
    clock = AwakeClock(LONGEST_TURN_SECONDS, lambda: it.now)
    underway: list[list[Message]] = [[], []]  # an answer is not there at once, but before another turn is over
    for turn in range(20):
        now = clock.turn()
        if Ping() in underway.pop(0):
            it.core.hear_scheduler(0, Pong(it.sessions[0], 0), now)
        if busy:
            it.generate(turn)
        it.now += 10 * LATE_SECONDS  # a prompt is read
        it.core.look_around(now)
        underway.append(it.said_to_scheduler())
        assert it.core.trouble(clock.now) == ""


def test_a_scheduler_that_takes_nothing_is_late_and_asked_once() -> None:
    it = driver()
    it.generate(1)
    it.wait(LATE_SECONDS + 0.5)
    assert "silent" in it.core.trouble(it.now)
    assert it.said_to_scheduler().count(Ping()) == 1


def test_a_core_that_drains_refuses_what_is_new_and_finishes_what_is_not() -> None:
    it = driver()
    it.generate(1)
    (submit,) = it.submitted()
    it.core.draining = True
    it.generate(2)
    (refusal,) = it.chunks()
    assert (refusal.request, refusal.finish) == (2, Finish.REFUSED)
    assert "shutting down" in refusal.error
    assert it.core.owed == 1
    it.tokens(submit, 0, [ABC, EOS], Finish.STOP)
    assert text_of(it.chunks()) == "ABC"
    assert it.core.owed == 0


def test_what_a_slow_client_does_not_take_is_kept_in_one_piece_and_delays_nobody() -> None:
    it = driver(max_model_len=10000)
    it.generate(1)
    it.generate(1, peer=b"another")
    slow, other = it.submitted()
    it.slow.add(ME)
    for at in range(1000):
        it.tokens(slow, at, [ABC])
        it.tokens(other, at, [X])
        assert text_of(it.chunks(b"another")) == "X"
        assert not it.chunks()
    it.slow.clear()
    (chunk,) = it.chunks()
    assert chunk.text == "ABC" * 1000
    assert chunk.output_tokens == 1000


def refused(it: Driver, times: int) -> None:
    """Let a client be refused so many times, whether it reads or not."""
    for request in range(1, times + 1):
        it.core.refuse(ME, request, ProtocolError("no"), it.now)
    it.core.check()


def test_a_client_that_lets_its_refusals_lie_and_takes_none_is_forgotten() -> None:
    it = driver()
    it.generate(0)
    it.slow.add(ME)
    refused(it, MANY_ANSWERS_WAITING)
    it.wait(READING_SECONDS, alive=[0])
    assert it.core.peers
    refused(it, 1)
    assert not it.core.peers


def test_a_client_whose_refusals_come_faster_than_it_takes_them_gets_them_all() -> None:
    it = driver()
    it.wait(60, alive=[0])
    taken = 0
    for _ in range(10):
        refused(it, MANY_ANSWERS_WAITING)
        it.wait(READING_SECONDS / 2, alive=[0])
        message = it.core.peers[ME].peek()
        assert message is not None
        it.core.peers[ME].sent(message, it.now)
        taken += 1
    assert taken + len(it.chunks()) == 10 * MANY_ANSWERS_WAITING


def test_even_a_client_that_reads_may_not_fill_the_memory() -> None:
    it = driver()
    refused(it, MOST_ANSWERS_WAITING)
    assert it.core.peers
    refused(it, 1)
    assert not it.core.peers


@pytest.mark.parametrize(
    ("cost", "done"), [(0.0, 100), (0.01, 5), (0.02, 3), (1.0, 1)], ids=["free", "cheap", "dear", "very dear"]
)
def test_a_turn_ends_when_its_time_is_over_but_does_something(cost: float, done: int) -> None:
    wall = [0.0]
    times = 0
    for _ in for_a_turn(100, 0.05, lambda: wall[0]):
        wall[0] += cost
        times += 1
    assert times == done


def test_stop_ends_every_request_and_tells_everyone() -> None:
    it = driver()
    it.generate(1)
    (submit,) = it.submitted()
    it.core.stop()
    (chunk,) = it.chunks()
    assert chunk.finish == Finish.ERROR
    assert "shutting down" in chunk.error
    assert only(it.said_to_scheduler(), Abort)[0].request.tolist() == [submit.request]


@pytest.mark.parametrize("moment", ["it is read", "a token comes", "it ends"])
def test_a_request_at_which_we_fail_ends_alone_with_an_error_and_a_traceback_in_the_log(
    moment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("nobody thought of this")

    it = driver()
    it.generate(1, prompt="a b")
    (other,) = it.submitted()
    with monkeypatch.context() as broken:
        if moment == "it is read":
            broken.setattr("frontend.tokenizer.TextTokenizer.encode", fail)
        it.generate(2, prompt="c d")
        if moment != "it is read":
            (submit,) = it.submitted()
            method = "push" if moment == "a token comes" else "finish"
            broken.setattr(f"frontend.detokenizer.Detokenizer.{method}", fail)
            it.tokens(submit, 0, [ABC, DEF], Finish.RUNNING if method == "push" else Finish.LENGTH)
            assert [type(said) for said in it.said_to_scheduler()] == ([Abort] if method == "push" else [])
    (chunk,) = it.chunks()
    assert (chunk.request, chunk.finish, chunk.error) == (2, Finish.ERROR, "the server failed at this request")
    assert "nobody thought of this" in caplog.text
    it.tokens(other, 0, [ABC], Finish.LENGTH)
    assert [(chunk.request, chunk.finish) for chunk in it.chunks()] == [(1, Finish.LENGTH)]


def test_the_clock_does_not_count_time_in_which_the_process_was_stopped() -> None:
    wall = [100.0]
    clock = AwakeClock(longest_turn=2.0, monotonic=lambda: wall[0])
    wall[0] += 1.5
    assert clock.turn() == 101.5
    wall[0] += 60.0
    assert clock.turn() == 103.5
    wall[0] += 1.0
    assert clock.turn() == 104.5


# ---------------------------------------------------------------- anything in any order


def script(submit: Submit) -> list[int]:
    """All tokens of a request, by its seed: words, and an end token for every third one."""
    draw = np.random.default_rng(submit.seed)
    tokens: list[int] = draw.integers(ABC, JKL + 1, size=12).tolist()
    return [*tokens, EOS] if submit.seed % 3 == 0 else tokens


def expected(seed: int, stop: Sequence[str], text: str) -> str:
    """Return the text of all its tokens up to the first stop string."""
    cut = min((at for at in (text.find(s) for s in stop) if at >= 0), default=len(text))
    return text[:cut]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=150))
def test_every_request_ends_once_with_its_own_text_whatever_happens(events: list[tuple[int, int]]) -> None:
    it = driver(schedulers=2, max_model_len=64)
    stops = {0: (), 1: ("GHI",), 2: ("XX", "JKLA"), 3: (), 4: ("?",), 5: ()}
    serving: dict[tuple[int, int], tuple[Submit, int]] = {}
    received: dict[tuple[int, int], str] = {}
    ended: dict[tuple[int, int], Finish] = {}
    asked: dict[int, int] = {}

    def look() -> None:
        for index in (0, 1, 0, 1):  # what follows an Attach is said in the second round
            for message in it.said_to_scheduler(index):
                if isinstance(message, Submit):
                    serving[index, message.request] = (message, len(message.output))
                elif isinstance(message, Abort):
                    for request in message.request.tolist():
                        serving.pop((index, request), None)
                elif isinstance(message, Attach):
                    for key in [key for key in serving if key[0] == index]:
                        del serving[key]
                    it.attach(index)
        for chunk in it.chunks():
            answer = chunk.request, chunk.index
            assert answer not in ended, "it had ended"
            received[answer] = received.get(answer, "") + chunk.text
            if chunk.finish:
                ended[answer] = Finish(chunk.finish)

    def step(which: int, most: int) -> None:
        if serving:
            key = sorted(serving)[which % len(serving)]
            submit, at = serving[key]
            whole = script(submit)
            row = whole[at : at + most]
            done = at + len(row) == len(whole)
            if done:
                del serving[key]
            else:
                serving[key] = (submit, at + len(row))
            finish = (Finish.STOP if whole[-1] == EOS else Finish.LENGTH) if done else Finish.RUNNING
            it.tokens(submit, at, row, finish, index=key[0])
            look()

    def restarted(index: int) -> None:
        it.sessions[index] += 50
        it.scheduler(index, Unattached(it.sessions[index]))
        look()

    for event, which in events:
        if event < 3:
            asked[len(asked)] = which
            it.generate(len(asked) - 1, seed=len(asked) - 1, stop=stops[which], stream=which != 3, n=1 + which // 3)
            look()
        elif event < 8:
            step(which, event - 2)
        elif event == 8:
            restarted(which % 2)
        else:
            it.client(Cancel(which))
            look()
            assert all((which, index) in ended for index in range(1 + asked[which] // 3 if which in asked else 0))
    for _ in range(40 * len(asked)):
        step(0, 3)

    assert not serving
    assert ended.keys() == {(request, index) for request, which in asked.items() for index in range(1 + which // 3)}
    pieces = dict(zip(range(ABC, JKL + 1), (w.replace("Ġ", " ") for w in WORDS), strict=True))
    for (request, index), finish in ended.items():
        submit_like = next_submit(sample_seed(request, index))
        whole = "".join(pieces[token] for token in script(submit_like) if token != EOS)
        right = expected(request, stops[asked[request]], whole)
        if finish is Finish.ABORT:
            assert right.startswith(received[request, index]) or whole.startswith(received[request, index])
        else:
            assert received[request, index] == right


def next_submit(seed: int) -> Submit:
    """Return a submission that is only its seed."""
    none = ids()
    return Submit(0, none, none, 0, 0.0, 0, 1.0, 0.0, seed, False, none, 0.0)


# ---------------------------------------------------------------- scored prompts


def scores_of(*tokens: int) -> Scores:
    return Scores(listing(*[[(token, -token / 8)] for token in tokens]), np.arange(2, 2 + len(tokens), dtype="<u4"))


def test_the_first_chunk_has_the_prompt_and_all_that_is_said_of_it() -> None:
    it = driver()
    it.generate(token_ids=ids(5, 6, 7, 8), prompt_logprobs=0, n=2)
    submit, other = it.submitted()
    assert (submit.prompt_logprobs, other.prompt_logprobs) == (0, None)
    it.tokens(submit, 0, [], scores=(1, scores_of(6, 7)))
    it.tokens(submit, 0, [], scores=(2, scores_of(7, 8)))  # the first of them for the second time
    assert it.chunks() == []
    it.tokens(submit, 0, [ABC])
    (chunk,) = it.chunks()
    assert chunk.prompt_token_ids is not None
    assert chunk.prompt_token_ids.tolist() == [5, 6, 7, 8]
    assert chunk.scores is not None
    assert chunk.scores.logprobs.entries() == [[], [(6, -0.75)], [(7, -0.875)], [(8, -1.0)]]
    it.tokens(submit, 1, [DEF], Finish.LENGTH)
    it.tokens(other, 0, [ABC], Finish.LENGTH)
    assert all(chunk.scores is None and chunk.prompt_token_ids is None for chunk in it.chunks())


def test_a_request_that_is_placed_anew_asks_for_the_scores_that_are_missing() -> None:
    it = driver()
    it.generate(token_ids=ids(5, 6, 7, 8), prompt_logprobs=0, stream=False)
    (submit,) = it.submitted()
    it.tokens(submit, 0, [], scores=(1, scores_of(6, 7)))
    it.scheduler(0, Unattached(it.sessions[0]))
    it.attach()
    (again,) = it.submitted()
    assert (submit.scores_told, again.scores_told, again.prompt_logprobs) == (0, 2, 0)
    it.tokens(again, 0, [ABC], Finish.LENGTH, scores=(3, scores_of(8)))
    (chunk,) = it.chunks()
    assert chunk.scores is not None
    assert [len(entries) for entries in chunk.scores.logprobs.entries()] == [0, 1, 1, 1]


@pytest.mark.parametrize(("first", "tokens"), [(2, []), (1, [257])], ids=["a gap", "a token too soon"])
def test_scores_that_are_missing_are_an_error(first: int, tokens: list[int]) -> None:
    it = driver()
    it.generate(token_ids=ids(5, 6, 7, 8), prompt_logprobs=0)
    (submit,) = it.submitted()
    it.tokens(submit, 0, tokens, scores=(first, scores_of(6)))
    (chunk,) = it.chunks()
    assert chunk.finish == Finish.ERROR
    assert chunk.scores is None
    assert it.core.counters["gaps"] == 1


def test_where_no_token_is_wanted_the_one_that_comes_is_nobodys() -> None:
    it = driver()
    it.generate(token_ids=ids(5, 6), prompt_logprobs=0, logprobs=0, max_tokens=0)
    (submit,) = it.submitted()
    assert submit.max_tokens == 1
    it.tokens(submit, 0, [ABC], Finish.STOP, scores=(1, scores_of(6)), logprobs=listing([(ABC, -1.0)]))
    (chunk,) = it.chunks()
    assert (chunk.finish, chunk.text, len(chunk.token_ids), chunk.output_tokens) == (Finish.LENGTH, "", 0, 0)
    assert chunk.scores is not None
    assert it.core.counters["overshoot_tokens"] == 1
