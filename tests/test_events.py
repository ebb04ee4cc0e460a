"""The short ways of a streamed token: its event is made of what is known, and goes straight into its connection."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from frontend.callers import Callers
from frontend.http.events import PlainEvents, event
from frontend.http.outlet import Outlet
from frontend.http.prompts import Prompts
from frontend.http.shapes import ChatChoices, CompletionChoices, Shape
from protocol.awake_clock import AwakeClock
from protocol.messages import Chunk, Finish, Generate
from tests.frontend_driver import Driver, ids
from tests.stub_scheduler import listing
from tests.word_tokenizer import word, word_text

A, B, C = (word(number) for number in range(3))
TEXTS = ["a", "", ' "quoted" \\ and\n\tbroken', "déjà vu \N{GRINNING FACE}", "\ue000", '","text":"', "\x00\x7f\u2028"]


def chunk(text: str, finish: Finish = Finish.RUNNING, index: int = 0, *, known: bool = False) -> Chunk:
    plain = Chunk(0, text, ids(97), finish, "", 3, 1, index=index)
    told = listing([(97, -0.5)])
    return replace(plain, listed=told.count, listed_token=told.token, logprob=told.logprob) if known else plain


def shape(choices: ChatChoices | CompletionChoices, model: str, usage: bool, echoes: list[str] | None) -> Shape:
    pieces = word_text().pieces
    prompts = Prompts(pieces, echoes=echoes, logprobs=None, prompt_logprobs=None, copies=1)
    return Shape(choices, model, usage, usage, 2, pieces, prompts, token="token", created=1)


@pytest.mark.parametrize("echoes", [None, ["said before"]])
@pytest.mark.parametrize("model", ['a "model"', "\ue000"])
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("choices", [ChatChoices(), CompletionChoices()])
def test_an_event_is_to_the_byte_what_it_would_be_if_made_anew(
    choices: ChatChoices | CompletionChoices, usage: bool, model: str, echoes: list[str] | None
) -> None:
    one, other = shape(choices, model, usage, echoes), shape(choices, model, usage, echoes)
    events = PlainEvents(one.news, one.place, steady=one.steady)
    for finish in (Finish.RUNNING, Finish.LENGTH):
        for number, text in enumerate(TEXTS):
            each = chunk(text, finish, number % 2, known=number == 4)
            made = b"".join(map(event, other.news(each)))
            assert events.of(each) == made
            if text:
                assert json.dumps(text, ensure_ascii=False).encode() in made


class Cycle:
    """What an outlet sees of its server."""

    def __init__(self) -> None:
        self.flow = SimpleNamespace(write_paused=False)
        self.disconnected = False
        self.written: list[bytes] = []
        self.transport = SimpleNamespace(write=self.written.append)


def test_pieces_are_written_as_chunks_and_an_empty_one_which_would_be_the_end_is_not() -> None:
    cycle = Cycle()
    outlet = Outlet(cast(RequestResponseCycle, cycle))
    assert outlet.has_room
    outlet.write(b"x" * 17)
    outlet.write(b"")
    assert cycle.written == [b"11\r\n" + b"x" * 17 + b"\r\n"]


@pytest.mark.parametrize(("paused", "gone"), [(True, False), (False, True)])
def test_nothing_is_written_to_who_does_not_read_or_is_gone(paused: bool, gone: bool) -> None:
    cycle = Cycle()
    cycle.flow.write_paused, cycle.disconnected = paused, gone
    assert not Outlet(cast(RequestResponseCycle, cycle)).has_room


class Asked:
    """A caller whose request is being served."""

    def __init__(self) -> None:
        self.it = Driver(word_text("a", "b", "c"))
        self.callers = Callers(self.it.core, AwakeClock(1.0, lambda: self.it.now), lambda: None)
        self.caller = self.callers.join()

    async def ask(self) -> None:
        asked = asyncio.create_task(self.caller.ask(Generate(1, token_ids=ids(1), stream=True)))
        await asyncio.sleep(0)
        self.callers.do_next()
        await asked
        (self.submit,) = self.it.submitted()
        self._offset = 0

    def tokens(self, *tokens: int, finish: Finish = Finish.RUNNING) -> None:
        """Let tokens come, as in a turn of the process."""
        self.it.tokens(self.submit, self._offset, tokens, finish)
        self._offset += len(tokens)
        for identity in list(self.it.core.speak_to):
            del self.it.core.speak_to[identity]
            assert self.callers.tell(identity)


async def test_what_is_passed_on_is_taken_at_once_and_what_is_not_taken_is_left() -> None:
    asked = Asked()
    await asked.ask()
    texts: list[str] = []

    def take(chunk: Chunk) -> bool:
        if chunk.finish == Finish.RUNNING:
            texts.append(chunk.text)
        return chunk.finish == Finish.RUNNING

    asked.tokens(A)
    passing = asyncio.create_task(asked.caller.pass_on(take))
    await asyncio.sleep(0)
    assert texts == ["a"], "it was there already"
    asked.tokens(B)
    assert texts == ["a", "b"], "no task had to be woken for it"
    asked.tokens(C, finish=Finish.LENGTH)
    await passing
    assert (await asked.caller.chunk()).text == "c"
    asked.caller.leave()
    assert not asked.it.core.peers


async def test_what_fails_at_one_is_told_to_that_one() -> None:
    asked = Asked()
    await asked.ask()

    def fail(chunk: Chunk) -> bool:
        raise RuntimeError("broken")

    passing = asyncio.create_task(asked.caller.pass_on(fail))
    await asyncio.sleep(0)
    asked.tokens(A)
    asked.tokens(B)
    with pytest.raises(RuntimeError, match="broken"):
        await passing
    assert (await asked.caller.chunk()).text == "ab"
