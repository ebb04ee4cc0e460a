"""The frontend's desk for the timeline: takes what clients ask of the collector, and hands out what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from protocol.messages import AskTimeline, StartTimeline, StopTimeline, TimelineState, View, Watch
from timeline.link import TimelineLink
from timeline.recorder import nanoseconds

ANSWER_SECONDS = 5.0
"""How long the collector may take; to stop a recording it waits for all processes, a second at most."""

WATCH_NANOSECONDS = 200_000_000
"""How often the collector is told that somebody looks."""

MOST_QUESTIONS = 64
"""Questions that wait for their answers: whoever asks more has lost count of them."""

UNAVAILABLE = "the timeline's collector is not there"

Question = StartTimeline | StopTimeline | AskTimeline


class TimelineUnavailableError(Exception):
    """Nobody answers; the text is for the user."""


class TimelineDesk:
    """Numbers the questions of all clients, so that each gets the answer to its own."""

    def __init__(self, link: TimelineLink) -> None:
        """Ask over the process's `link`."""
        self._link = link
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[TimelineState]] = {}
        self._view: View | None = None
        self._watched = 0

    @property
    def view(self) -> View | None:
        """The newest view; None until there is one, or when the collector is gone."""
        return self._view if self._link.there else None

    def watch(self) -> None:
        """Say that somebody looks: for some seconds from now views are made, one for each time this is called."""
        if nanoseconds() - self._watched >= WATCH_NANOSECONDS and self._link.say(Watch()):
            self._watched = nanoseconds()

    async def ask(self, question: Question) -> TimelineState:
        """Return what the collector answers. Raises `TimelineUnavailableError` if it does not."""
        if len(self._asked) >= MOST_QUESTIONS:
            raise TimelineUnavailableError(f"{MOST_QUESTIONS} questions to the timeline's collector wait already")
        number = next(self._numbers)
        if not self._link.say(replace(question, request=number)):
            raise TimelineUnavailableError(UNAVAILABLE)
        answered: asyncio.Future[TimelineState] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            state = await asyncio.wait_for(answered, ANSWER_SECONDS)
        except TimeoutError:
            raise TimelineUnavailableError(UNAVAILABLE) from None
        finally:
            del self._asked[number]
        return replace(state, request=question.request)

    def hear(self, said: Iterable[TimelineState | View]) -> None:
        """Take what the collector has said."""
        for message in said:
            if isinstance(message, View):
                self._view = message
            elif (answered := self._asked.get(message.request)) is not None and not answered.done():
                answered.set_result(message)
