"""A request whose prompt is so long that it is read beside everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Generate

MOST_UNREAD_CHARACTERS = 2**27
"""In all prompts together that wait to be read; whoever comes with more is turned away."""


@dataclass(slots=True, eq=False)
class Unread:
    """Waits from when it is asked until it has been `read` and the core is told.

    `given_up` says that nobody wants it any more. `prompt` has the token ids then, or `error` what is wrong.
    """

    peer: bytes
    ask: Generate
    characters: int
    arrived: float
    make_prompt: Callable[[], NDArray[np.uint32]]
    given_up: bool = False
    prompt: NDArray[np.uint32] | None = None
    error: Exception | None = None

    @property
    def deadline(self) -> float:
        """When its time is up, whether it has been read by then or not."""
        return self.arrived + self.ask.timeout if self.ask.timeout else inf

    def read(self) -> None:
        """Read the prompt, which takes long; on any thread."""
        if self.given_up:
            return
        try:
            self.prompt = self.make_prompt()
        except Exception as error:  # a TextError, or what nobody foresaw: the core knows what to make of it
            self.error = error

    def result(self) -> NDArray[np.uint32]:
        """Return the prompt; raises what was wrong with it."""
        if self.error is not None:
            raise self.error
        assert self.prompt is not None
        return self.prompt
