"""Threads that read what is long: nobody else waits meanwhile, for the tokenizer lets go of the interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG_CHARACTERS = 2**14
"""A longer text is left to them. This one takes some milliseconds; what is short is not worth the way there."""

VERY_LONG_CHARACTERS = 2**18
"""Texts that are longer have a thread of their own, or others would wait for seconds behind them."""

_Read = TypeVar("_Read")


class Readers:
    """One for long texts and one for very long ones: each takes up what has waited longest.

    How much may wait is for those to bound who ask.
    """

    def __init__(self) -> None:
        """Be ready to start them."""
        self._long = ThreadPoolExecutor(1, "reader")
        self._very_long = ThreadPoolExecutor(1, "patient reader")

    async def read(self, characters: int, work: Callable[[], _Read]) -> _Read:
        """Return what `work`, for so many characters, returns, or raise what it raises.

        If this is cancelled before its turn, nothing is done.
        """
        threads = self._long if characters <= VERY_LONG_CHARACTERS else self._very_long
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """Read what is being read, and nothing that waits."""
        for threads in (self._long, self._very_long):
            threads.shutdown(wait=False, cancel_futures=True)
