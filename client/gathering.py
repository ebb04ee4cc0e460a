"""Answers to many prompts, of which a bounded number are asked for at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from client.completion import Completion
from client.errors import ServerLostError, StepaheadError
from client.window import Window

Answers = list[Completion]
"""All that one prompt is answered by: as many as were asked for."""


class Gathering:
    """What became of each prompt, by its place: `answers`, or one of `errors`. One that fails ends no other.

    Only what the window has room for is on its way at a time, so that prompts by the thousand cost no more memory than
    their answers do. Once the server is lost nothing more is asked.
    """

    def __init__(self, prompts: int, answers_each: int, ask: Callable[[int], Awaitable[Answers]]) -> None:
        """Be ready to `ask` each of so many `prompts` for so many answers."""
        self.prompts = prompts
        self.answers: list[Answers | None] = [None] * prompts
        self.errors: dict[int, StepaheadError] = {}
        self.done = 0  # prompts
        self.tokens = 0  # of their answers
        self._each = answers_each
        self._ask = ask
        self._lost: ServerLostError | None = None

    async def run(self, window: Window) -> None:
        """Ask all. Raises what is wrong with the asking, such as `TypeError`; cancelled, it aborts what is left."""
        room = min(self._each, window.room)  # more than may be asked for is refused, and not waited for
        try:
            async with asyncio.TaskGroup() as tasks:
                for place in range(self.prompts):
                    await window.take(room)
                    if self._lost is not None:
                        window.give_back(room)
                        break
                    # Not in the task itself: one that is cancelled before its first turn never comes to its `finally`.
                    tasks.create_task(self._answer(place)).add_done_callback(lambda _: window.give_back(room))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if self._lost is not None:
            self.lose(self._lost)

    def lose(self, error: ServerLostError) -> None:
        """Take it that nothing more will be answered; nothing is under way any more."""
        for place, answers in enumerate(self.answers):
            if answers is None:
                self.errors.setdefault(place, error)

    async def _answer(self, place: int) -> None:
        try:
            answers = self.answers[place] = await self._ask(place)
        except StepaheadError as error:
            self.errors[place] = error
            if isinstance(error, ServerLostError):
                self._lost = error
        else:
            self.tokens += sum(answer.output_tokens for answer in answers)
        self.done += 1
