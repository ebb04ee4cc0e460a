"""How many answers may be under way at once."""

from __future__ import annotations

import asyncio


class Window:
    """Room for a number of answers, shared by whoever asks on one event loop; who has waited longest is first."""

    def __init__(self, room: int) -> None:
        """Begin empty."""
        self.room = room
        self._free = room
        self._turn = asyncio.Lock()
        self._given_back = asyncio.Event()

    async def take(self, answers: int) -> None:
        """Wait until there is room for so many, which are no more than `room`, and take it; `give_back` pairs it."""
        async with self._turn:
            while self._free < answers:
                self._given_back.clear()
                await self._given_back.wait()
            self._free -= answers

    def give_back(self, answers: int) -> None:
        """Make room again."""
        self._free += answers
        self._given_back.set()

    def check(self) -> None:
        """Assert that everything was given back."""
        assert self._free == self.room, f"{self.room - self._free} answers were never given back"
