"""Clients within the process: what they ask is heard one by one, when the process says so."""

from __future__ import annotations

import asyncio

import pytest

from frontend.callers import Caller, Callers
from protocol.awake_clock import AwakeClock
from protocol.messages import Finish, Generate
from tests.frontend_driver import Driver, ids
from tests.word_tokenizer import word_text


class Within:
    """A core and its callers; `wakes` counts how often the process was woken."""

    def __init__(self) -> None:
        self.it = Driver(word_text())
        self.wakes = 0
        self.callers = Callers(self.it.core, AwakeClock(1.0, lambda: self.it.now), self._wake)

    async def asking(self, number: int, *requests: int) -> tuple[Caller, asyncio.Task[None]]:
        """Let a new one ask, one after the other, for continuations of `number`."""
        caller = self.callers.join()

        async def ask() -> None:
            for request in requests:
                await caller.ask(Generate(request, token_ids=ids(number)))

        task = asyncio.create_task(ask())
        await asyncio.sleep(0)
        return caller, task

    def heard(self) -> list[int]:
        """The prompts that reached the scheduler since the last time."""
        return [int(submit.prompt[0]) for submit in self.it.submitted()]

    def _wake(self) -> None:
        self.wakes += 1


async def test_nothing_is_read_before_the_process_says_so_and_then_one_question_at_a_time() -> None:
    within = Within()
    tasks = [(await within.asking(number, 0))[1] for number in (1, 2, 3)]
    assert within.heard() == []
    for number in (1, 2, 3):
        within.wakes = 0
        assert within.callers.do_next()
        assert within.heard() == [number]
        assert bool(within.wakes) == (number < 3), "those that still wait need another turn"
    assert not within.callers.do_next()
    await asyncio.gather(*tasks)


async def test_one_that_asks_for_much_lets_the_others_go_between() -> None:
    within = Within()
    await within.asking(1, 0, 1, 2)
    await within.asking(2, 0)
    for _ in range(4):
        within.callers.do_next()
        await asyncio.sleep(0)
    assert within.heard() == [1, 2, 1, 1]


async def test_of_one_that_left_or_gave_up_nothing_is_heard() -> None:
    within = Within()
    gone, _ = await within.asking(1, 0)
    _, given_up = await within.asking(2, 0)
    await within.asking(3, 0)
    gone.leave()
    given_up.cancel()
    await asyncio.sleep(0)
    while within.callers.do_next():
        pass
    assert within.heard() == [3]


async def test_a_failure_at_one_question_is_told_to_who_asked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    within = Within()

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    _, task = await within.asking(1, 0)
    with monkeypatch.context() as broken:
        broken.setattr(within.it.core, "hear_client", fail)
        assert within.callers.do_next()
    with pytest.raises(RuntimeError, match="broken"):
        await task
    caller, task = await within.asking(2, 0)
    assert within.callers.do_next()
    await task
    assert within.heard() == [2]
    within.it.core.stop()
    assert (await caller.chunk()).finish == Finish.ERROR


async def test_what_waits_at_the_end_is_done_and_whatever_comes_later_too() -> None:
    within = Within()
    waiting = within.callers.in_turn(lambda: "before")
    within.callers.close()
    assert waiting.result() == "before"
    assert await within.callers.in_turn(lambda: "after") == "after"
