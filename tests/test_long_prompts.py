"""A prompt that takes long to read is read beside everything else, and is a request like others meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from frontend import core
from frontend.readers import LONG_CHARACTERS, VERY_LONG_CHARACTERS, Readers
from frontend.request_log import RequestLog
from frontend.unread import Unread
from protocol.messages import Cancel, Chunk, Finish, Generate
from tests.frontend_driver import ME, Driver, ids
from tests.word_tokenizer import word_text

LONG = "a long text "


def driver(**facts: Any) -> Driver:
    """A core that leaves prompts of more than ten characters unread."""
    return Driver(word_text(), at_once=10, **facts)


def read(it: Driver) -> Unread:
    """Let the prompt that has waited longest be read."""
    unread = it.core.take_unread()
    assert unread is not None
    unread.read()
    it.core.has_read(unread, it.now)
    it.core.check()
    return unread


def test_it_is_served_once_it_is_read_and_short_ones_go_ahead() -> None:
    it = driver()
    it.generate(1, prompt=LONG)
    it.generate(2, prompt="short")
    assert it.core.owed == 2
    assert [len(submit.prompt) for submit in it.submitted()] == [5]
    read(it)
    (submit,) = it.submitted()
    assert len(submit.prompt) == len(LONG)
    assert it.core.take_unread() is None


@pytest.mark.parametrize("fields", [{"messages": ({"role": "user", "content": [{"type": "text", "text": LONG}]},)}, {}])
def test_how_long_it_is_counts_however_it_is_asked(fields: dict[str, Any]) -> None:
    it = driver()
    it.generate(1, **(fields or {"messages": ({"role": "user", "content": LONG},)}))
    assert it.submitted() == []
    read(it)
    assert len(it.submitted()) == 1


def test_token_ids_are_read_already_and_odd_chats_are_refused_at_once() -> None:
    it = driver()
    it.generate(1, token_ids=ids(*[5] * 20))
    it.generate(2, messages=({"role": "user", "content": 7},))
    assert it.core.take_unread() is None
    assert len(it.submitted()) == 1
    assert [chunk.finish for chunk in it.chunks()] == [Finish.REFUSED]


@pytest.mark.parametrize("taken", [False, True], ids=["waiting", "being read"])
def test_it_can_be_cancelled_at_any_time(taken: bool) -> None:
    it = driver()
    it.generate(1, prompt=LONG, n=2)
    unread = it.core.take_unread() if taken else None
    it.client(Cancel(1))
    assert [(chunk.finish, chunk.index) for chunk in it.chunks()] == [(Finish.ABORT, 0), (Finish.ABORT, 1)]
    if unread is None:
        unread = read(it)
        assert unread.prompt is None, "it was read for nobody"
    else:
        unread.read()
        it.core.has_read(unread, it.now)
    assert it.submitted() == []
    assert it.core.owed == 0
    it.generate(1, prompt="again")  # its number is free
    assert len(it.submitted()) == 1


def test_of_a_client_that_has_gone_nothing_is_read() -> None:
    it = driver()
    it.generate(1, prompt=LONG)
    it.core.client_gone(ME)
    assert read(it).prompt is None
    assert it.said_to_scheduler() == []
    it.core.check()


def test_what_is_wrong_with_it_is_told_when_it_was_read() -> None:
    it = driver()
    it.generate(1, prompt=LONG * 10)
    it.generate(2, prompt="\ud800" * 11)
    assert it.chunks() == []
    read(it)
    read(it)
    long, broken = it.chunks()
    assert long.finish == broken.finish == Finish.REFUSED
    assert (long.at_fault, long.error.partition(":")[0]) == ("prompt", "the prompt has 120 tokens")


def test_its_number_is_taken_while_it_is_read() -> None:
    it = driver()
    it.generate(1, prompt=LONG)
    it.generate(1, prompt="short")
    assert [chunk.error for chunk in it.chunks()] == [
        "request 1 is still being served; a new request needs a new number"
    ]
    read(it)
    assert len(it.submitted()) == 1


def test_too_many_are_turned_away_until_some_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_UNREAD_CHARACTERS", 2 * len(LONG))
    it = driver()
    for number in (1, 2, 3):
        it.generate(number, prompt=LONG)
    (chunk,) = it.chunks()
    assert (chunk.request, chunk.finish) == (3, Finish.BUSY)
    read(it)
    it.generate(4, prompt=LONG)
    assert it.chunks() == []


@pytest.mark.parametrize("taken", [False, True], ids=["waiting", "being read"])
def test_it_ends_when_its_time_is_up_and_not_when_somebody_has_read_it(taken: bool) -> None:
    it = driver()
    it.generate(1, prompt=LONG, timeout=1.0)
    it.generate(2, prompt=LONG)
    unread = it.core.take_unread() if taken else None
    it.wait(0.75, alive=(0,), peers=(ME,))
    assert it.chunks() == []
    it.wait(0.5, alive=(0,), peers=(ME,))
    assert [(chunk.request, chunk.finish) for chunk in it.chunks()] == [(1, Finish.TIMEOUT)]
    if unread is None:
        assert read(it).prompt is None, "it was read for nobody"
    else:
        unread.read()
        it.core.has_read(unread, it.now)
    read(it)
    assert len(it.submitted()) == 1, "the other one has no such limit"


def test_of_what_was_read_in_time_the_rest_of_the_time_is_left() -> None:
    it = driver()
    it.generate(1, prompt=LONG, timeout=4.0)
    it.wait(3.0, alive=(0,), peers=(ME,))
    read(it)
    (submit,) = it.submitted()
    assert submit.timeout == pytest.approx(1.0)


def test_what_ends_unread_is_counted_and_logged_like_what_ends_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core, "MOST_UNREAD_CHARACTERS", 3 * len(LONG))
    it = driver()
    it.core.request_log = RequestLog(lambda: it.now, on=True)
    with caplog.at_level(logging.INFO, "stepahead.requests"):
        it.generate(1, prompt=LONG, n=2)
        it.client(Cancel(1))
        it.generate(2, prompt=LONG, timeout=1.0)
        it.wait(1.0, alive=(0,), peers=(ME,))
        it.generate(3, prompt=LONG)
        it.generate(4, prompt=LONG)
        it.core.client_gone(ME)
    assert [record.getMessage() for record in caplog.records] == ["abort", "timeout", "busy", "abort"]
    assert it.core.tally.ended == {Finish.ABORT: 3, Finish.TIMEOUT: 1}
    assert it.core.counters["turned_away"] == 1


def test_it_ends_with_the_server() -> None:
    it = driver()
    it.generate(1, prompt=LONG)
    it.core.stop()
    assert [chunk.finish for chunk in it.chunks()] == [Finish.ERROR]
    assert it.core.owed == 0
    assert it.submitted() == []


def test_a_long_text_has_the_ids_that_it_would_have_anyway() -> None:
    text = word_text("Ġa", "Ġlong").tokenizer
    long = " a long, long text" * (LONG_CHARACTERS // 10)
    assert text.encode(long) == text.tokenizer.encode(long).ids


async def test_long_texts_do_not_wait_for_very_long_ones_and_nobody_waits_for_either() -> None:
    readers = Readers()
    gate = threading.Event()
    try:
        slow = asyncio.create_task(readers.read(VERY_LONG_CHARACTERS + 1, lambda: gate.wait(20)))
        never = asyncio.create_task(readers.read(VERY_LONG_CHARACTERS + 1, lambda: "never"))
        async with asyncio.timeout(10):
            assert await readers.read(LONG_CHARACTERS + 1, threading.current_thread) is not threading.main_thread()
        assert not slow.done()
    finally:
        readers.close()
        gate.set()
    assert await slow
    with pytest.raises(asyncio.CancelledError):
        await never


def test_a_failure_nobody_foresaw_ends_that_request_alone() -> None:
    it = driver()
    it.generate(1, prompt=LONG)
    unread = it.core.take_unread()
    assert unread is not None
    unread.error = RuntimeError("broken")
    it.core.has_read(unread, it.now)
    (chunk,) = it.chunks()
    assert isinstance(chunk, Chunk)
    assert (chunk.finish, chunk.error) == (Finish.ERROR, core.FAILED)
    it.client(Generate(2, prompt="short"))
    assert len(it.submitted()) == 1
