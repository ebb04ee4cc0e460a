"""Frames: every message survives the trip, and nothing but a message comes out of the other end."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import MISSING, fields, replace
from math import inf, nan
from typing import Any, get_args, get_type_hints

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol import codec
from protocol.codec import MAX_FRAME_BYTES, MAX_FRAME_ITEMS, decode, encode, request_of
from protocol.errors import ProtocolError
from protocol.fields import Column, Document, Flag, Integer, Kind, Many, Maybe, Real, Text
from protocol.messages import (
    EXPLAINED,
    MOST_BAD_WORD_TOKENS,
    MOST_BAD_WORDS,
    Abort,
    Cancel,
    Chunk,
    Deltas,
    Finish,
    Generate,
    Message,
    Note,
    Ping,
    Plan,
    Pong,
    Result,
    RowFlag,
    Submit,
)

MESSAGE_TYPES: tuple[type[Any], ...] = get_args(Message)

# ---------------------------------------------------------------- making messages from their declarations


def kinds_of(message_type: type[Any]) -> dict[str, Kind]:
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(message_type, include_extras=True).items()}


def text(longest: int = 40) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=min(longest, 40))


def documents() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | text()
    inner = st.recursive(leaves, lambda s: st.lists(s, max_size=3) | st.dictionaries(text(), s, max_size=3))
    return st.dictionaries(text(), inner, max_size=3)


def column(kind: Column, length: int) -> st.SearchStrategy[NDArray[Any]]:
    dtype = np.dtype(kind.dtype)
    entries: st.SearchStrategy[Any]
    if dtype.kind == "f":
        entries = st.floats(kind.low, kind.high, width=32)
    else:
        low = 0 if kind.low is None else int(kind.low)
        high = np.iinfo(dtype).max if kind.high is None else int(kind.high)
        entries = st.integers(low, int(high))
    return st.lists(entries, min_size=length, max_size=length).map(lambda many: np.array(many, dtype))


def values(kind: Kind) -> st.SearchStrategy[Any]:
    match kind:
        case Integer(low, high):
            return st.integers(low, high)
        case Real(low, high):
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        case Flag():
            return st.booleans()
        case Text(longest):
            return text(longest)
        case Many(item):
            return st.lists(values(item), max_size=3).map(tuple)
        case Maybe(inner):
            return st.none() | values(inner)
        case Document():
            return documents()
        case Column():
            return st.integers(0, 5).flatmap(lambda length: column(kind, length))
    raise AssertionError(f"the tests know no values for {kind}")


COLUMN_GROUPS = {
    "Plan": (
        ("slot", "position", "count", "flags"),
        ("table_slot", "table_index", "table_block"),
        ("begin_slot", "temperature", "top_k", "top_p", "min_p", "seed"),
        ("adjust_slot", "free_from", "notes"),
        ("note", "note_token"),
    ),
    "Submit": (("bias_token_ids", "bias"),),
    "Generate": (("bias_token_ids", "bias"),),
    "Result": (("token", "status"),),
    "Deltas": (("request", "offset", "count", "finish", "cached"),),
    "Spans": (("kind", "start", "end", "step", "session", "rows", "tokens", "decodes", "wasted"),),
    "View": (("device", "scheduler", "worker", "both"),),
}


@st.composite
def messages(draw: st.DrawFn, message_type: type[Any]) -> Any:
    made = {name: draw(values(kind)) for name, kind in kinds_of(message_type).items()}
    name = message_type.__name__
    for group in COLUMN_GROUPS.get(name, ()):
        length = draw(st.integers(0, 5))
        for field in group:
            kind = kinds_of(message_type)[field]
            kind = kind.kind if isinstance(kind, Maybe) else kind
            assert isinstance(kind, Column)
            made[field] = draw(column(kind, length))
    if name == "Plan":
        made["count"] = np.minimum(made["count"], 5)
        made["count"][made["flags"] & RowFlag.CARRY != 0] = 1
        travelling = int(made["count"][made["flags"] & RowFlag.CARRY == 0].sum())
        made["token"] = np.arange(travelling, dtype="<u4")
        made["listed"] = draw(st.sampled_from([None, np.full(len(made["begin_slot"]), 21, "<u1")]))
        made["scored"] = np.array([[row, 0, n, 21] for row, n in enumerate(made["count"])], "<u4").reshape(-1)
        made["scored_token"] = np.arange(made["count"].sum(), dtype="<u4")
        if draw(st.booleans()):
            made |= dict.fromkeys(("scored", "scored_token"))
        if draw(st.booleans()):
            made["notes"] = np.minimum(made["notes"], 3)
            made["note"] = np.resize(np.arange(6, dtype="<u1"), made["notes"].sum())
            made["note_token"] = np.arange(len(made["note"]), dtype="<u4")
            made["bias"] = np.full(np.count_nonzero(made["note"] == Note.BIAS), -2.5, "<f4")
            made["penalty"] = np.full(3 * len(made["notes"]), 1.5, "<f4")
        else:
            made |= dict.fromkeys(("adjust_slot", "free_from", "notes", "note", "note_token", "bias", "penalty"))
    if name == "Submit":
        made["bad_word_lengths"] = draw(st.sampled_from([None, np.array([2, 3], "<u1")]))
        made["bad_word_tokens"] = None if made["bad_word_lengths"] is None else np.arange(5, dtype="<u4")
    if name == "Deltas":
        made["count"] = np.minimum(made["count"], 5)
        made["token"] = np.arange(made["count"].sum(), dtype="<u4")
        made["timing"] = np.full(4 * np.count_nonzero(made["finish"]), 0.5, "<f4")
        made["errors"] = ("why",) * int(np.isin(made["finish"], EXPLAINED).sum())
    if name in ("Result", "Deltas", "Chunk"):
        tokens = len(made["token_ids" if name == "Chunk" else "token"])
        made |= dict.fromkeys(("listed", "listed_token", "logprob"))
        if draw(st.booleans()):
            made["listed"] = np.resize(np.array([0, 3, 1], "<u1"), tokens)
            made["listed_token"] = np.arange(made["listed"].sum(), dtype="<u4")
            made["logprob"] = np.full(made["listed"].sum(), -9999.0, "<f4")
        made |= dict.fromkeys(("scored", "scored_token", "scored_logprob", "scored_rank"))
        if draw(st.booleans()):
            scored = made["scored"] = np.array([0, 3, 1], "<u1")
            made["scored_token"] = np.arange(scored.sum(), dtype="<u4")
            made["scored_logprob"] = np.full(scored.sum(), -0.5, "<f4")
            made["scored_rank"] = np.array([0, 9, 1], "<u4")
        # Deltas say whose they are: of the last row, if there is one.
        if name == "Deltas":
            rows = len(made["request"])
            made["score_row"] = np.array([rows - 1, 7, 3], "<u4") if rows and made["scored"] is not None else None
            if not rows:
                made |= dict.fromkeys(("scored", "scored_token", "scored_logprob", "scored_rank"))
        if name == "Chunk" and made["scored"] is not None:
            made["prompt_token_ids"] = np.arange(3, dtype="<u4")
    if name == "Spans":
        made["end"] = np.maximum(made["start"], made["end"])
    if name == "View":
        made["known"] = draw(st.integers(0, len(made["device"])))
    if name == "Generate":
        chosen = draw(st.sampled_from(["prompt", "messages", "token_ids"]))
        for field in ("prompt", "messages", "token_ids"):
            kind = kinds_of(Generate)[field]
            assert isinstance(kind, Maybe)
            made[field] = draw(values(kind.kind)) if field == chosen else None
        if made["max_tokens"] == 0:
            made["prompt_logprobs"] = 20
    return message_type(**made)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    return type(left) is type(right) and bool(left == right)


def plan(rows: int, *, flags: int = RowFlag.CARRY | RowFlag.SAMPLE, began: int = 0) -> Plan:
    """A step of one token a row; the tables of one row in sixteen grow, as with blocks of 16 tokens."""
    grown = rows // 16
    return Plan(
        session=2**63,
        step=10**9,
        settled=10**9 - 2,
        slot=np.arange(rows, dtype="<u4"),
        position=np.full(rows, 4000, "<u4"),
        count=np.ones(rows, "<u4"),
        flags=np.full(rows, flags, "<u1"),
        token=np.zeros(0 if flags & RowFlag.CARRY else rows, "<u4"),
        table_slot=np.arange(grown, dtype="<u4"),
        table_index=np.full(grown, 250, "<u4"),
        table_block=np.arange(grown, dtype="<u4"),
        begin_slot=np.arange(began, dtype="<u4"),
        temperature=np.ones(began, "<f4"),
        top_k=np.zeros(began, "<u4"),
        top_p=np.ones(began, "<f4"),
        min_p=np.zeros(began, "<f4"),
        seed=np.arange(began, dtype="<u8"),
    )


def deltas(finish: list[int], *, count: int = 1, errors: tuple[str, ...] = ()) -> Deltas:
    rows = len(finish)
    return Deltas(
        session=1,
        request=np.arange(rows, dtype="<u8"),
        offset=np.zeros(rows, "<u4"),
        count=np.full(rows, count, "<u4"),
        finish=np.array(finish, "<u1"),
        cached=np.zeros(rows, "<u4"),
        token=np.arange(rows * count, dtype="<u4"),
        timing=np.zeros(4 * np.count_nonzero(finish), "<f4"),
        errors=errors,
    )


def submit(**changes: Any) -> Submit:
    usual = Submit(
        request=7,
        prompt=np.arange(3, dtype="<u4"),
        output=np.zeros(0, "<u4"),
        max_tokens=16,
        temperature=0.5,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=1,
        ignore_eos=False,
        stop_token_ids=np.zeros(0, "<u4"),
        timeout=0.0,
    )
    return replace(usual, **changes)


def wire_of(message: Any) -> dict[str, Any]:
    wire = msgpack.unpackb(encode(message))
    assert isinstance(wire, dict)
    return wire


def decode_wire(**wire: Any) -> Message:
    return decode(msgpack.packb(wire))


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=lambda message_type: message_type.__name__)
@given(data=st.data())
def test_every_message_comes_back_equal(message_type: type[Any], data: st.DataObject) -> None:
    sent = data.draw(messages(message_type))
    got = decode(encode(sent))
    assert type(got) is message_type
    for field in fields(sent):
        assert same(getattr(sent, field.name), getattr(got, field.name)), field.name


def test_a_decoded_column_can_not_be_written_to() -> None:
    got = decode(encode(plan(4)))
    assert isinstance(got, Plan)
    with pytest.raises(ValueError, match="read-only"):
        got.slot[0] = 1


def test_columns_are_little_endian_on_the_wire() -> None:
    assert wire_of(Abort(np.array([1, 2**63], "<u8")))["request"] == bytes([1] + 7 * [0] + 7 * [0] + [128])


def test_optional_fields_may_be_absent() -> None:
    got = decode_wire(type="Generate", request=1, prompt="hello")
    assert got == Generate(request=1, prompt="hello")


def test_what_is_none_and_may_be_absent_takes_no_room() -> None:
    assert wire_of(Generate(1, prompt="x")).keys().isdisjoint({"messages", "token_ids", "seed", "bias", "logprobs"})
    assert wire_of(plan(2)).keys().isdisjoint({"adjust_slot", "penalty", "note", "bias", "listed"})


def test_a_member_of_an_enumeration_travels_as_its_number() -> None:
    chunk = Chunk(1, "x", np.zeros(0, "<u4"), Finish.STOP, "", 1, 1)
    assert wire_of(chunk)["finish"] == 1


def test_a_plan_of_256_decode_rows_takes_at_most_16_bytes_a_row() -> None:
    assert len(encode(plan(256))) <= 16 * 256


def test_every_column_of_floats_has_bounds_that_keep_nan_out() -> None:
    columns = [kind for message in MESSAGE_TYPES for kind in kinds_of(message).values() if isinstance(kind, Column)]
    floats = [kind for kind in columns if np.dtype(kind.dtype).kind == "f"]
    assert floats
    assert all(kind.low is not None and kind.high is not None for kind in floats)


# ---------------------------------------------------------------- what is no message


@pytest.mark.parametrize(
    "wire",
    [None, 1, "Ping", [], ["type", "Ping"], {}, {"type": None}, {"type": ["Ping"]}, {"type": b"Ping"}]
    + [{"type": name} for name in ("ping", "", "Message", "__class__", "x" * 10_000)],
    ids=lambda wire: repr(wire)[:30],
)
def test_anything_but_a_map_of_a_known_type_is_refused(wire: Any) -> None:
    with pytest.raises(ProtocolError, match="expected a map|unknown message type"):
        decode(msgpack.packb(wire))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Cancel has unknown fields 'colour'"):
        decode_wire(type="Cancel", request=1, colour="red")


def test_unknown_fields_of_mixed_types_are_refused() -> None:
    frame = msgpack.packb({"type": "Cancel", "request": 1, "a": 1, b"b": 2})
    with pytest.raises(ProtocolError, match="unknown fields 'a', b'b'"):
        decode(frame)


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not MessagePack"):
        decode(msgpack.packb({"type": "Cancel", "request": 1, 5: 1}))


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_a_number_without_bounds_is_finite_all_the_same(number: float) -> None:
    with pytest.raises(ProtocolError, match="finite"):
        Real().unpack(number)


def test_a_field_given_twice_is_refused() -> None:
    frame = b"\x83" + b"".join(msgpack.packb(part) for part in ("type", "Cancel", "request", 1, "request", 2))
    with pytest.raises(ProtocolError, match="twice"):
        decode(frame)


@pytest.mark.parametrize("message", [Cancel(1), plan(2), submit(), deltas([1])], ids=lambda m: type(m).__name__)
def test_every_missing_field_is_named(message: Any) -> None:
    whole = wire_of(message)
    optional = {field.name for field in fields(message) if field.default is not MISSING}
    for name in whole.keys() - {"type"} - optional:
        part = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(ProtocolError, match=f"lacks '{name}'"):
            decode_wire(**part)


def test_a_message_of_a_type_that_was_not_expected_is_refused() -> None:
    assert decode(encode(Ping()), Ping, Pong) == Ping()
    with pytest.raises(ProtocolError, match="Ping has no place here"):
        decode(encode(Ping()), Pong)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("request", True),
        ("request", -1),
        ("request", 1.0),
        ("request", "1"),
        ("request", None),
        ("max_tokens", 2**31),
        ("seed", -1),
        ("temperature", nan),
        ("temperature", inf),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", "0"),
        ("top_p", 1.1),
        ("timeout", inf),
        ("ignore_eos", 1),
        ("ignore_eos", None),
        ("prompt", [1, 2, 3]),
        ("prompt", "abcd"),
        ("prompt", b"abc"),
        ("prompt", None),
    ],
)
def test_a_wrong_value_on_the_wire_is_refused_by_name(field: str, wrong: Any) -> None:
    with pytest.raises(ProtocolError, match=f"^Submit.{field}: "):
        decode_wire(**wire_of(submit()) | {field: wrong})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("request", 2**64),
        ("request", np.int64(1)),
        ("request", False),
        ("max_tokens", 2**70),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("temperature", nan),
        ("temperature", 10**400),
        ("timeout", -inf),
        ("prompt", [1, 2, 3]),
        ("prompt", np.zeros(3, "<i4")),
        ("prompt", np.zeros(3, ">u4")),
        ("prompt", np.zeros((3, 1), "<u4")),
        ("prompt", np.zeros((), "<u4")),
        ("ignore_eos", 0),
    ],
)
def test_a_wrong_value_is_refused_before_it_is_sent(field: str, wrong: Any) -> None:
    with pytest.raises(ProtocolError, match=f"^Submit.{field}: "):
        encode(submit(**{field: wrong}))


ENDLESS: dict[str, Any] = {}
ENDLESS["again"] = [ENDLESS]


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"prompt": "\ud800"}, "can't be carried"),
        ({"prompt": "x", "token_ids": np.zeros(1, "<u4")}, "exactly one"),
        ({}, "exactly one"),
        ({"messages": ({1: "x"},)}, "text keys"),
        ({"messages": ({"x": {1: 2}},)}, "text keys, one has the key 1"),
        ({"messages": ({"x": [{"y": ({b"z": 2},)}]},)}, "text keys, one has the key b'z'"),
        ({"messages": ({"x": [{"type": "text", "text": "a"}] * 100_000},)}, "more than 262144 entries"),
        ({"messages": (ENDLESS,)}, "more than 262144 entries"),
        ({"messages": ({"x": 2**64},)}, "can't be carried"),
        ({"messages": ({"x": object()},)}, "can't be carried"),
        ({"messages": "abc"}, "expected a tuple"),
        ({"prompt": "x", "stop": "abc"}, "expected a tuple"),
        ({"prompt": "x", "stop": 5}, "expected a tuple"),
        ({"prompt": "x", "stop": ("s",) * 65}, "65 items"),
        ({"prompt": "x", "stop": ("s" * (2**14 + 1),)}, "16385 characters"),
        ({"prompt": "x", "seed": 2**63}, "outside"),
        ({"prompt": "x", "seed": -(2**63) - 1}, "outside"),
    ],
)
def test_a_wrong_request_for_text_is_refused_before_it_is_sent(wrong: dict[str, Any], where: str) -> None:
    with pytest.raises(ProtocolError, match=where):
        encode(Generate(request=1, **wrong))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("stop", ["s"] * 65), ("stop", ["s" * (2**14 + 1)]), ("stop", "abc"), ("stop", None), ("stop", [1])),
        *(("messages", [{}] * (2**12 + 1)), ("messages", {}), ("messages", [[]])),
        ("messages", [{"x": [{b"y": 1}]}]),
        *(("seed", 2**63), ("max_tokens", 0)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_wrong_request_for_text_is_refused_when_it_comes(field: str, wrong: Any) -> None:
    with pytest.raises(ProtocolError, match=f"^Generate.{field}: "):
        decode_wire(**{"type": "Generate", "request": 1, "prompt": "x", field: wrong})


@pytest.mark.parametrize(("part", "entries"), [(0, 1), ([], 2), ([0, 0], 4), ({"a": 0}, 3)], ids=repr)
def test_a_request_that_is_sent_can_be_read_up_to_the_last_entry(part: Any, entries: int) -> None:
    # The message, stop and bad_words, messages, the one, content.
    around = (1 + len(fields(Generate)) + 1) + 2 + (1 + 1) + (1 + 1) + 1
    room = MAX_FRAME_ITEMS - around
    content = [part] * (room // entries - 1)
    content += [0] * (room - entries * len(content))
    ask = Generate(1, messages=({"content": content},))
    assert decode(encode(ask)) == ask
    content.append(0)
    with pytest.raises(ProtocolError, match="more than 262144 entries"):
        encode(ask)


def test_seeds_of_64_bits_are_carried() -> None:
    for seed in (2**63 - 1, -(2**63)):
        assert decode(encode(Generate(1, prompt="x", seed=seed))) == Generate(1, prompt="x", seed=seed)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("slot", np.zeros(1, "<u4")),
        ("table_index", np.zeros(3, "<u4")),
        ("seed", np.zeros(1, "<u8")),
        ("token", np.zeros(1, "<u4")),
        ("count", np.full(32, 2, "<u4")),
        ("count", np.zeros(32, "<u4")),
        ("flags", np.full(32, 4, "<u1")),
        ("temperature", np.full(2, nan, "<f4")),
        ("temperature", np.full(2, inf, "<f4")),
        ("top_p", np.full(2, 1.5, "<f4")),
        ("min_p", np.full(2, -0.5, "<f4")),
    ],
)
def test_columns_of_a_plan_that_do_not_fit_are_refused_in_both_directions(field: str, wrong: Any) -> None:
    good = plan(32, began=2)
    with pytest.raises(ProtocolError):
        encode(replace(good, **{field: wrong}))
    with pytest.raises(ProtocolError):
        decode_wire(**wire_of(good) | {field: wrong.tobytes()})


def adjusting(**changes: Any) -> Plan:
    """A plan that begins two adjusted slots, with two notes and one."""
    usual: dict[str, Any] = {
        "adjust_slot": np.arange(2, dtype="<u4"),
        "penalty": np.ones(6, "<f4"),
        "free_from": np.zeros(2, "<u4"),
        "notes": np.array([2, 1], "<u4"),
        "note": np.array([Note.PROMPT, Note.BIAS, Note.END], "<u1"),
        "note_token": np.arange(3, dtype="<u4"),
        "bias": np.ones(1, "<f4"),
    }
    return replace(plan(2, began=2), **(usual | changes))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("adjust_slot", np.zeros(1, "<u4")),
        ("penalty", np.ones(5, "<f4")),
        ("penalty", np.full(6, nan, "<f4")),
        ("penalty", np.zeros(6, "<f4")),
        ("free_from", np.zeros(3, "<u4")),
        ("notes", np.array([2, 2], "<u4")),
        ("notes", np.full(2, 2**32 - 1, "<u4")),
        ("note", np.array([0, 3, 9], "<u1")),
        ("note", np.array([0, 2, 2], "<u1")),
        ("note_token", np.zeros(2, "<u4")),
        ("bias", np.zeros(0, "<f4")),
        ("bias", np.full(1, 101, "<f4")),
    ],
)
def test_columns_about_adjusted_slots_that_do_not_fit_are_refused(field: str, wrong: Any) -> None:
    good = adjusting()
    assert decode(encode(good)) is not None
    for frame in (wrong.tobytes(), None):
        with pytest.raises(ProtocolError):
            decode_wire(**wire_of(good) | {field: frame})
    with pytest.raises(ProtocolError):
        encode(replace(good, **{field: wrong}))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([7], [8]),
        ([7, 7], [8]),
        ([8], [6]),
        ([7, 8], [7]),
        ([], [7] * MOST_BAD_WORD_TOKENS + [8]),
        ([7, 8] * (MOST_BAD_WORDS + 1), [6]),
        ([6] * MOST_BAD_WORD_TOKENS, [7, 8]),
    ],
    ids=str,
)
def test_bad_words_that_have_no_end_or_no_place_are_refused(first: list[int], second: list[int]) -> None:
    def noting(*notes: list[int]) -> Plan:
        each = np.array([*itertools.chain(*notes)], "<u1")
        counts = np.array([len(own) for own in notes], "<u4")
        return adjusting(notes=counts, note=each, note_token=np.zeros(len(each), "<u4"), bias=np.zeros(0, "<f4"))

    most = [*[6] * (MOST_BAD_WORD_TOKENS - 1), *[7] * (MOST_BAD_WORD_TOKENS - 1), 8, *[7, 8] * (MOST_BAD_WORDS - 1)]
    assert decode(encode(noting(most, most))) is not None
    with pytest.raises(ProtocolError, match="word"):
        encode(noting(first, second))


def test_the_tokens_of_bad_words_are_as_many_as_their_lengths_say() -> None:
    words: dict[str, Any] = {"bad_word_tokens": np.zeros(5, "<u4"), "bad_word_lengths": np.array([2, 3], "<u1")}
    assert decode(encode(submit(**words))) is not None
    wrongs: list[dict[str, Any]] = [
        {"bad_word_tokens": None},
        {"bad_word_lengths": None},
        {"bad_word_lengths": np.array([2, 2], "<u1")},
        {"bad_word_lengths": np.array([4, 1], "<u1")},
        {"bad_word_tokens": np.zeros(35, "<u4"), "bad_word_lengths": np.array([2, 33], "<u1")},
    ]
    for wrong in wrongs:
        with pytest.raises(ProtocolError):
            encode(submit(**words | wrong))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("listed", np.array([1, 1], "<u1")),
        ("listed", np.array([3], "<u1")),
        ("listed", np.array([1, 22], "<u1")),
        ("listed_token", np.zeros(1, "<u4")),
        ("logprob", np.zeros(4, "<f4")),
        ("logprob", np.full(3, nan, "<f4")),
        ("logprob", np.full(3, -inf, "<f4")),
        ("logprob", np.full(3, 0.1, "<f4")),
    ],
)
def test_columns_of_log_probabilities_that_do_not_fit_are_refused(field: str, wrong: Any) -> None:
    columns = {"listed": np.array([1, 2], "<u1"), "listed_token": np.zeros(3, "<u4"), "logprob": np.zeros(3, "<f4")}
    two = np.zeros(2, "<u4")
    whole: list[Any] = [
        Result(1, 1, two, np.zeros(2, "<u1")), deltas([0, 0]), Chunk(1, "", two, Finish.RUNNING, "", 1, 2)
    ]  # fmt: skip
    for message in whole:
        good = replace(message, **columns)
        assert decode(encode(good)) is not None
        for frame in (wrong.tobytes(), None):
            with pytest.raises(ProtocolError):
                decode_wire(**wire_of(good) | {field: frame})
        with pytest.raises(ProtocolError):
            encode(replace(good, **{field: wrong}))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("scored", np.array([1, 0, 2], "<u4")),
        ("scored", np.array([32, 0, 1, 1], "<u4")),
        ("scored", np.array([1, 1, 1, 1], "<u4")),
        ("scored", np.array([1, 0, 2**32 - 1, 1], "<u4")),
        ("scored", np.array([1, 0, 1, 0], "<u4")),
        ("scored", np.array([1, 0, 1, 22], "<u4")),
        ("scored", np.array([1, 0, 1, 1, 1, 1, 0, 1], "<u4")),
        ("scored_token", np.zeros(2, "<u4")),
    ],
)
def test_what_a_plan_scores_is_in_its_rows(field: str, wrong: Any) -> None:
    good = replace(plan(32), scored=np.array([1, 0, 1, 21], "<u4"), scored_token=np.zeros(1, "<u4"))
    assert decode(encode(good)) is not None
    for frame in (wrong.tobytes(), None):
        with pytest.raises(ProtocolError):
            decode_wire(**wire_of(good) | {field: frame})
    with pytest.raises(ProtocolError):
        encode(replace(good, **{field: wrong}))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("scored", np.array([1, 1], "<u1")),
        ("scored", np.array([3], "<u1")),
        ("scored", np.array([1, 22], "<u1")),
        ("scored_token", np.zeros(1, "<u4")),
        ("scored_logprob", np.full(3, nan, "<f4")),
        ("scored_logprob", np.zeros(2, "<f4")),
        ("scored_rank", np.zeros(3, "<u4")),
    ],
)
def test_columns_of_scores_that_do_not_fit_are_refused(field: str, wrong: Any) -> None:
    columns: dict[str, Any] = {
        "scored": np.array([1, 2], "<u1"),
        "scored_token": np.zeros(3, "<u4"),
        "scored_logprob": np.zeros(3, "<f4"),
        "scored_rank": np.ones(2, "<u4"),
    }
    two, status = np.zeros(2, "<u4"), np.zeros(2, "<u1")
    good: list[Any] = [
        Result(1, 1, two, status, **columns),
        replace(deltas([0, 0]), score_row=np.array([1, 5, 2], "<u4"), **columns),
        Chunk(1, "", two, Finish.RUNNING, "", 2, 2, prompt_token_ids=two, **columns),
    ]
    for message in good:
        assert decode(encode(message)) is not None
        for frame in (wrong.tobytes(), None):
            with pytest.raises(ProtocolError):
                decode_wire(**wire_of(message) | {field: frame})
        with pytest.raises(ProtocolError):
            encode(replace(message, **{field: wrong}))
    for row in (None, np.array([2, 5, 2], "<u4"), np.array([1, 5, 3], "<u4"), np.array([1, 5], "<u4")):
        with pytest.raises(ProtocolError):
            encode(replace(good[1], score_row=row))
    for prompt in (None, np.zeros(3, "<u4")):
        with pytest.raises(ProtocolError):
            encode(replace(good[2], prompt_token_ids=prompt))


def test_each_biased_token_has_its_bias() -> None:
    one: dict[str, Any] = {"bias_token_ids": np.zeros(1, "<u4"), "bias": np.zeros(1, "<f4")}
    assert decode(encode(submit(**one))) is not None
    assert decode(encode(Generate(1, prompt="x", **one))) is not None
    wrongs: list[dict[str, Any]] = [{"bias": None}, {"bias": np.zeros(2, "<f4")}, {"bias_token_ids": None}]
    for wrong in wrongs:
        with pytest.raises(ProtocolError, match="differ in length"):
            encode(submit(**one | wrong))
        with pytest.raises(ProtocolError, match="differ in length"):
            encode(Generate(1, prompt="x", **one | wrong))


def test_the_tokens_of_a_plan_are_those_of_its_rows_without_carry() -> None:
    prompts = replace(plan(2, flags=RowFlag.SAMPLE), count=np.array([3, 1], "<u4"), token=np.zeros(4, "<u4"))
    assert decode(encode(prompts)) is not None
    with pytest.raises(ProtocolError, match="4 tokens in all, 3 came"):
        encode(replace(prompts, token=np.zeros(3, "<u4")))
    with pytest.raises(ProtocolError, match="exactly one input token"):
        encode(replace(prompts, flags=np.array([RowFlag.CARRY, 0], "<u1"), token=np.zeros(3, "<u4")))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("offset", np.zeros(1, "<u4")),
        ("cached", np.zeros(1, "<u4")),
        ("token", np.zeros(1, "<u4")),
        ("count", np.full(2, 2**32 - 1, "<u4")),
        ("timing", np.zeros(3, "<f4")),
        ("timing", np.full(4, nan, "<f4")),
        ("finish", np.array([0, 7], "<u1")),
    ],
)
def test_columns_of_deltas_that_do_not_fit_are_refused(field: str, wrong: Any) -> None:
    good = deltas([Finish.RUNNING, Finish.STOP])
    with pytest.raises(ProtocolError):
        encode(replace(good, **{field: wrong}))
    with pytest.raises(ProtocolError):
        decode_wire(**wire_of(good) | {field: wrong.tobytes()})


def test_every_row_that_ends_with_an_error_says_why_and_no_other_does() -> None:
    assert decode(encode(deltas([4, 0, 5, 2], errors=("ours", "yours")))) is not None
    for errors in ((), ("ours",), ("ours", "yours", "whose?")):
        with pytest.raises(ProtocolError, match="2 rows ended with"):
            encode(deltas([4, 0, 5, 2], errors=errors))


def test_a_result_with_an_unknown_status_is_refused() -> None:
    good = Result(1, 1, np.zeros(1, "<u4"), np.zeros(1, "<u1"))
    with pytest.raises(ProtocolError, match="Result.status"):
        decode_wire(**wire_of(good) | {"status": b"\x02"})


def test_a_request_that_is_refused_can_still_be_named() -> None:
    assert request_of(msgpack.packb({"type": "Generate", "request": 5, "prompt": "x", "seed": 2**63})) == 5
    parts = b"".join(map(msgpack.packb, ("type", "Generate", "request", 6, "prompt")))
    assert request_of(b"\x83" + parts + b"\xa1\xff") == 6


@pytest.mark.parametrize(
    "wrong", [{1: 2}, {b"x": [{2: 3}]}, [0] * (MAX_FRAME_ITEMS + 1), [[[]] * 10] * 50_000], ids=lambda it: repr(it)[:20]
)
@pytest.mark.parametrize("order", [("type", "request", "messages"), ("messages", "request", "type")], ids=str)
def test_a_request_is_named_whatever_is_wrong_beside_it(wrong: Any, order: tuple[str, ...]) -> None:
    whole = {"type": "Generate", "request": 5, "messages": [{"role": "user", "content": wrong}]}
    frame = msgpack.packb({name: whole[name] for name in order})
    with pytest.raises(ProtocolError):
        decode(frame)
    assert request_of(frame) == 5


def test_naming_a_request_takes_no_memory_whatever_comes() -> None:
    many = b"\xdd" + (2**22).to_bytes(4, "big") + b"\x90" * 2**22
    pairs = b"\xdf" + (2**22).to_bytes(4, "big") + b"\xa1x\xc0" * 2**22
    frames = [pairs, *(b"\x83" + name + many for name in (b"", b"\xa1x", b"\xa4type", b"\xa7request"))]
    tracemalloc.start()
    try:
        for frame in frames:
            tracemalloc.reset_peak()
            assert request_of(frame) is None
            assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert request_of(bytes(MAX_FRAME_BYTES + 1)) is None


@pytest.mark.parametrize(
    "wire",
    [5, [], {}, {"type": "Generate"}, {"type": "Cancel", "request": 1}, {"type": "Generate", "request": True}]
    + [{"type": "Generate", "request": request} for request in (-1, "1", 1.0, None, [1])],
    ids=repr,
)
def test_what_names_no_request_has_none(wire: Any) -> None:
    assert request_of(msgpack.packb(wire)) is None


# ---------------------------------------------------------------- hostile bytes


def test_an_oversize_message_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        encode(submit(prompt=np.zeros(MAX_FRAME_BYTES // 4, "<u4")))


def test_an_oversize_frame_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "msgpack", None)
    with pytest.raises(ProtocolError, match="at most"):
        decode(bytes(MAX_FRAME_BYTES + 1))


def nested(depth: int, around: bytes) -> bytes:
    return b"\x82" + msgpack.packb("type") + msgpack.packb("Ping") + msgpack.packb("x") + around * depth + b"\xc0"


@pytest.mark.parametrize("around", [b"\x91", b"\x81\xa1k"], ids=["lists", "maps"])
@pytest.mark.parametrize("depth", [10, 500, 600, 100_000])
def test_deep_nesting_is_refused(depth: int, around: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(nested(depth, around))


def test_deep_nesting_in_place_of_the_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown message type"):
        decode(b"\x81" + msgpack.packb("type") + b"\x91" * 500 + b"\xc0")


@pytest.mark.parametrize("item", [b"\x80", b"\x90", b"\x81\xa1k\xc0", b"\xc0"], ids=["maps", "lists", "pairs", "nils"])
def test_a_small_frame_can_not_unfold_into_very_many_objects(item: bytes) -> None:
    count = MAX_FRAME_ITEMS + 1
    in_one = b"\xdd" + count.to_bytes(4, "big") + item * count
    in_many = b"\xdc\xff\xff" + (b"\x98" + item * 8) * 65535
    for frame in (in_one, in_many):
        with pytest.raises(ProtocolError, match="not MessagePack"):
            decode(frame)
        assert request_of(frame) is None


def test_a_declared_length_takes_no_memory() -> None:
    for head in (b"\xdd", b"\xdf", b"\xdb", b"\xc6"):  # array, map, text, bytes of 4 GiB
        with pytest.raises(ProtocolError):
            decode(head + b"\xff\xff\xff\xff")


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(frame)
    assert request_of(frame) is None


FRAMES = [encode(message) for message in (plan(3, began=2), submit(), deltas([0, 4], errors=("x",)), Cancel(1))]


@given(st.sampled_from(FRAMES), st.data())
def test_a_truncated_frame_is_refused(frame: bytes, data: st.DataObject) -> None:
    with pytest.raises(ProtocolError):
        decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(st.sampled_from(FRAMES), st.data())
def test_a_frame_with_bytes_behind_it_is_refused(frame: bytes, data: st.DataObject) -> None:
    with pytest.raises(ProtocolError):
        decode(frame + data.draw(st.binary(min_size=1, max_size=9)))


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_frame_is_a_message_or_an_error(frame: bytes, data: st.DataObject) -> None:
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(damaged))
    except ProtocolError:
        return
    assert decode(encode(message)) is not None


@st.composite
def almost_messages(draw: st.DrawFn) -> bytes:
    """Maps with the right names and anything for values."""
    message_type = draw(st.sampled_from(MESSAGE_TYPES))
    anything = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | text() | st.binary(max_size=32),
        lambda s: st.lists(s, max_size=3) | st.dictionaries(text() | st.binary(max_size=4), s, max_size=3),
        max_leaves=5,
    )
    wire = {"type": message_type.__name__} | {name: draw(anything) for name in kinds_of(message_type)}
    frame: bytes = msgpack.packb(wire)
    return frame


@given(almost_messages())
def test_right_names_with_any_values_are_a_message_or_an_error(frame: bytes) -> None:
    try:
        message = decode(frame)
    except ProtocolError:
        return
    assert decode(encode(message)) is not None
