"""Many prompts through a window: as many under way as it has room for, and all room comes back."""

from __future__ import annotations

import asyncio
import random

import pytest

from client.completion import Completion
from client.errors import RequestRefusedError, ServerLostError
from client.gathering import Answers, Gathering
from client.window import Window


class Server:
    """Answers in any order; `most` is how many answers were under way at once."""

    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.under_way = self.most = self.asked = 0

    async def ask(self, place: int, each: int) -> Answers:
        self.asked += 1
        self.under_way += each
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(self.dice.randint(1, 5)):
                await asyncio.sleep(0)
            return [Completion(str(place), (), "stop", 1, 2)] * each
        finally:
            self.under_way -= each


@pytest.mark.parametrize("each", [1, 3, 8])
async def test_calls_share_a_window_and_never_have_more_under_way_than_it_has_room_for(each: int) -> None:
    server, window = Server(), Window(8)
    calls = [Gathering(100, n, lambda place, n=n: server.ask(place, n)) for n in (each, 1, 2)]  # type: ignore[misc]
    await asyncio.gather(*[call.run(window) for call in calls])
    assert server.most == 8
    for call in calls:
        assert [answers[0].text for answers in call.answers if answers] == [str(place) for place in range(100)]
        assert not call.errors
    assert (calls[0].done, calls[0].tokens) == (100, 200 * each)
    window.check()


async def test_a_call_that_is_cancelled_at_any_moment_gives_all_room_back() -> None:
    window = Window(4)
    for turns in range(12):
        server = Server(turns)
        task = asyncio.create_task(Gathering(50, 2, lambda place, it=server: it.ask(place, 2)).run(window))  # type: ignore[misc]
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert not server.under_way
        window.check()


async def test_nothing_more_is_asked_of_a_server_that_is_lost_and_what_it_said_before_stays() -> None:
    server, window = Server(), Window(2)

    async def ask(place: int) -> Answers:
        if place == 3:
            raise RequestRefusedError("no")
        if place >= 10:
            raise ServerLostError("gone")
        return await server.ask(place, 1)

    call = Gathering(1000, 1, ask)
    await call.run(window)
    assert [place for place, answers in enumerate(call.answers) if answers] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert call.errors.keys() == {3, *range(10, 1000)}
    assert (str(call.errors[3]), str(call.errors[999])) == ("no", "gone")
    assert call.done < 20
    window.check()


async def test_more_answers_than_there_is_room_for_are_asked_for_and_not_waited_for() -> None:
    server, window = Server(), Window(2)
    call = Gathering(3, 100, lambda place: server.ask(place, 100))
    await asyncio.wait_for(call.run(window), 5)
    assert call.done == 3
    window.check()


async def test_a_mistake_in_the_asking_ends_the_call_as_it_is() -> None:
    window = Window(2)

    async def ask(place: int) -> Answers:
        if place == 2:
            raise TypeError("unknown settings: colour")
        return await Server().ask(place, 1)

    with pytest.raises(TypeError, match="colour"):
        await Gathering(10, 1, ask).run(window)
    await asyncio.sleep(0)
    window.check()
