"""The frontend's desk: each asker gets the answer to its own question, or hears that nobody answers."""

from __future__ import annotations

import asyncio

import pytest

from frontend import timeline_desk
from frontend.timeline_desk import MOST_QUESTIONS, TimelineDesk, TimelineUnavailableError
from protocol.messages import AskTimeline, Message, StartTimeline, StopTimeline, TimelineState, View, Watch
from tests.collector_system import System
from timeline.link import TimelineLink


class StubLink(TimelineLink):
    """Keeps what is said to the collector."""

    def __init__(self, there: bool = True) -> None:
        self.said: list[Message] = []
        self.there = there

    def say(self, message: Message) -> bool:
        if self.there:
            self.said.append(message)
        return self.there


def state(request: int, file: str) -> TimelineState:
    return TimelineState(request, True, file, 1.0, 2, 3, "", "")


def seen(desk: TimelineDesk) -> View | None:
    return desk.view


def numbers(link: StubLink) -> list[int]:
    return [said.request for said in link.said if isinstance(said, StartTimeline | StopTimeline | AskTimeline)]


async def test_everybody_gets_the_answer_to_their_own_question() -> None:
    link = StubLink()
    desk = TimelineDesk(link)
    tasks = [asyncio.create_task(desk.ask(AskTimeline(7))) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(set(numbers(link))) == 3
    desk.hear([state(number, f"file {number}") for number in reversed(numbers(link))])
    answers = await asyncio.gather(*tasks)
    assert [answer.file for answer in answers] == [f"file {number}" for number in numbers(link)]
    assert [answer.request for answer in answers] == [7, 7, 7]


async def test_who_has_gone_away_misses_the_answer_and_nobody_else_does() -> None:
    link = StubLink()
    desk = TimelineDesk(link)
    gone, stays = (asyncio.create_task(desk.ask(StopTimeline(1))) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    desk.hear([state(number, "file") for number in numbers(link)])
    assert (await stays).file == "file"


async def test_without_a_collector_nobody_waits() -> None:
    with pytest.raises(TimelineUnavailableError, match="is not there"):
        await TimelineDesk(StubLink(there=False)).ask(AskTimeline(1))


async def test_a_collector_that_does_not_answer_is_waited_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_desk, "ANSWER_SECONDS", 0.01)
    with pytest.raises(TimelineUnavailableError, match="is not there"):
        await TimelineDesk(StubLink()).ask(AskTimeline(1))


async def test_watching_is_told_now_and_then_and_shows_the_newest_view(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    link = StubLink()
    desk = TimelineDesk(link)
    assert seen(desk) is None
    for _ in range(50):
        desk.watch()
    assert link.said == [Watch()]
    system = System(tmp_path_factory.mktemp("directory"))
    (view, *_) = system.hear(b"desk", Watch())
    desk.hear([view])  # type: ignore[list-item]
    assert seen(desk) is view
    link.there = False
    assert seen(desk) is None


async def test_who_asks_without_end_is_refused_and_can_ask_again_later() -> None:
    link = StubLink()
    desk = TimelineDesk(link)
    tasks = [asyncio.create_task(desk.ask(AskTimeline(7))) for _ in range(MOST_QUESTIONS)]
    await asyncio.sleep(0)
    with pytest.raises(TimelineUnavailableError, match="wait already"):
        await desk.ask(AskTimeline(8))
    assert len(link.said) == MOST_QUESTIONS
    desk.hear([state(number, "") for number in numbers(link)])
    await asyncio.gather(*tasks)
    again = asyncio.create_task(desk.ask(AskTimeline(9)))
    await asyncio.sleep(0)
    desk.hear([state(numbers(link)[-1], "file")])
    assert (await again).file == "file"
